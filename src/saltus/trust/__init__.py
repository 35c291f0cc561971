"""Can this gradient be trusted? Certificates of solutions and of losses."""

from .certification import LossCertificate, certify
from .solution_certificate import Certificate, certificate
from .text import REASONS

__all__ = ["REASONS", "Certificate", "LossCertificate", "certificate", "certify"]
