//! Certificates by ACME (RFC 8555): ordered, stored and renewed while the server runs.
//!
//! An [`Issuer`] is a certification authority with the certificates that the configuration wants from it. [`Acme::start`]
//! starts a thread for each issuer in each worker process. The thread that holds the lock of the issuer's directory talks to
//! the authority. All others only look for new files there. No event loop waits for any of this.
//!
//! - `policy`: when an attempt is made; pure functions that get the time from their caller
//! - `state`: the directory, with atomic writes
//! - `transport`: requests to the authority, which a retiring worker abandons at once
//! - `standing`: the state of each certificate, for status pages and the health judge
//! - `signer`: account keys that the ACME library cannot use
//! - `dns`: TXT records, by a program or by dynamic updates
//! - `client`: one attempt, which goes on where an earlier one was interrupted
//! - `threads`: the threads of a process, one for each issuer
//! - `keeper`: what such a thread does
//! - `managed_certificate`: a certificate that a keeper manages
//! - `renewal_window`: the renewal window that the authority suggests
//!
//! - In: settings of `acme_issuer` and `acme_certificate`.
//! - Out: files with certificates and answers to challenges, and the newest file of each certificate
//!   ([`CertificateOrder::file`]).
//! - Callers: `http`, which reads the directives and answers challenges; `server`, which starts and stops the threads.

mod client;
mod dns;
mod keeper;
mod managed_certificate;
mod policy;
mod renewal_window;
mod settings;
mod signer;
mod standing;
mod state;
mod stop;
mod threads;
mod transport;

pub use dns::{Dns, Hook, Publisher, TsigKey, UpdateServer};
pub use settings::{
    AccountKey, BadIdentifier, CertificateOrder, Challenge, ExternalAccount, Issuer, KeyKind,
    Profile, Trust, identifier,
};
pub use standing::{Standing, Standings};
pub use state::{challenge_file, tls_challenge_file};
pub use threads::{Acme, Listener};
