//! TLS as configured, for `http`, `stream` and `mail` alike: the `ssl_*` directives of servers,
//! those of modules that connect to servers (`proxy_ssl_*`), the contexts that they are compiled
//! into, and the `$ssl_*` variables.
//!
//! All of it is generic over a [`Subject`](weir_values::Subject). `http` and `stream` read lines by
//! the [`SslDirective`]s of [`server::rows`] and [`client_directives`]. They call [`server::build`]
//! once a block was read, then [`weir_tls::read_hello`] and [`server::ServerContext::accept`] for
//! each new connection. For TLS to servers there is [`client::Settings`]. The protocol itself is
//! `weir-tls`'.

pub mod certificate_cache;
pub mod client;
pub mod commands;
mod files;
mod handed;
pub mod load;
pub mod ocsp;
mod read;
mod reader;
pub mod scripted;
pub mod server;

pub use certificate_cache::CertificateCache;
pub use files::{CertificateFacts, KeyFileUses, KeyFiles};
pub use handed::HandedConnection;
pub use read::{ciphers, file, file_for_each, named, passwords};
pub use reader::{DirectiveUse, NamedFile, SetDirective, SslDirective, SslReader};
pub use weir_tls::{seed_random, ticket_secrets_made, turn_ticket_keys};
