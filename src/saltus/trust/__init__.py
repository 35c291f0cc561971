"""Can this gradient be trusted? Certificates of solutions and of losses."""

from .certificate import Certificate, certificate
from .certify import LossCertificate, certify
from .words import REASONS

__all__ = ["REASONS", "Certificate", "LossCertificate", "certificate", "certify"]
