"""What is solved: the models, their numbers and their exact answers, written once for all tools."""
