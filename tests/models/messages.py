"""How tests look at the words of an error."""


def mentions(caught, *words):
    """That the error which was caught has each of the words."""
    text = str(caught.value)
    assert all(word in text for word in words), text
