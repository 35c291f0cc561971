"""Can this gradient be trusted? Certificates of solutions and of losses."""

from .certification import LossCertificate, certify
from .reasons import REASONS
from .solution_certificate import Certificate, certificate

__all__ = ["REASONS", "Certificate", "LossCertificate", "certificate", "certify"]
