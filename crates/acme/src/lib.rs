//! Certificates by ACME (RFC 8555): asked for, kept and renewed while the server serves.
//!
//! An [`Issuer`] is an authority with the certificates that are wanted of it. [`Acme::start`] gives each issuer a thread in
//! each worker process. The thread that holds the lock of the issuer's directory talks to the authority, all others only
//! look for new files there. No event loop waits for any of this.
//!
//! - `policy`: when an attempt is made; pure, over two clocks that are passed in
//! - `state`: the directory; each write is whole or not there
//! - `transport`: requests to the authority, which a worker that retires leaves at once
//! - `standing`: how each certificate stands, for pages and for the judge of the server's health
//! - `signer`: accounts with keys of other kinds than the library's
//! - `dns`: TXT records, by a program or by dynamic updates
//! - `client`: one attempt, from wherever an earlier one was interrupted
//! - `keeper`: the thread
//!
//! - In: settings of `acme_issuer` and `acme_certificate`.
//! - Out: files with certificates and answers to challenges, and the newest file of each certificate
//!   ([`CertificateOrder::file`]).
//! - Callers: `http`, which reads the directives and answers challenges; `server`, which starts and stops the threads.

mod client;
mod dns;
mod keeper;
mod opinion;
mod policy;
mod settings;
mod signer;
mod standing;
mod state;
mod stop;
mod transport;

pub use dns::{Dns, Hook, Publisher, TsigKey, UpdateServer};
pub use keeper::{Acme, Listener};
pub use settings::{
    AccountKey, BadIdentifier, CertificateOrder, Challenge, ExternalAccount, Issuer, KeyKind,
    Profile, Trust, identifier,
};
pub use standing::{Standing, Standings};
pub use state::{challenge_file, tls_challenge_file};
