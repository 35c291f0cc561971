"""Can this gradient be trusted? Certificates of solutions and of losses."""

from .certificate import Certificate, certificate
from .certification import LossCertificate, certify
from .text import REASONS

__all__ = ["REASONS", "Certificate", "LossCertificate", "certificate", "certify"]
