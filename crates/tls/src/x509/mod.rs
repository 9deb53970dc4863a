//! Certificates: reading, showing and verifying them as OpenSSL does, since configurations and scripts
//! were written for its rules and its words. A verifier that only knows the rules of the public web would
//! refuse what private authorities issue: certificates of version 1, authorities that present themselves,
//! host names in the common name.
//!
//! [`der`] reads them, and no published crate. `x509-cert` 0.3.0 and 0.2.5 (which `x509-ocsp` 0.2.1 needs) were tried in
//! November 2026 on odd encodings and on the 145 authorities of a Debian:
//!
//! - **They refuse what OpenSSL takes**, in every profile: lengths that are not the shortest, a critical flag of 1
//!   instead of 255, UniversalStrings, identifiers by UUID (2.25.…) or of more than 39 bytes, times before 1970, version 4.
//!   The test `odd_encodings_that_openssl_takes_are_taken` has all of these. For them a second reader would have to stay.
//! - **They copy.** A certificate takes 5.5 µs and 27 allocations instead of 0.2 µs and one. A handshake that checks a
//!   certificate reads every authority. A revocation list of 100,000 entries takes 12 MB in 200,000 allocations, and
//!   none here.
//! - **They save little.** About 470 lines here read. 300 of them would go, if strict reading were enough. Names and times as
//!   text, comparison, hosts, chains and OpenSSL's faults would stay. `x509-cert` brings five crates (itself,
//!   `const-oid`, `der`, `der_derive`, `spki`), `x509-ocsp` a second version of each.

pub mod cert;
pub mod constraints;
pub mod crl;
pub mod der;
pub mod host;
pub mod kind;
pub mod name;
pub mod ocsp;
pub mod signature;
pub mod verify;

pub use cert::Certificate;
pub use crl::{KnownList, RevocationList};
pub use kind::CertificateKind;
pub use verify::{Purpose, TrustStore, VerifyError};

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
