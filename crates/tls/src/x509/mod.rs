//! Certificates: reading, showing and verifying them as OpenSSL does, since configurations and scripts
//! were written for its rules and its words. A verifier that only knows the rules of the public web would
//! refuse what private authorities issue: certificates of version 1, authorities that present themselves,
//! host names in the common name.

pub mod cert;
pub mod crl;
pub mod der;
pub mod host;
pub mod kind;
pub mod name;
pub mod ocsp;
pub mod signature;
pub mod verify;

pub use cert::Certificate;
pub use crl::RevocationList;
pub use kind::CertificateKind;
pub use verify::{Purpose, TrustStore, VerifyError};
