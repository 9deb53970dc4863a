//! TLS as configurations say it, once for `http` and `stream`: the `ssl_*` directives of servers,
//! those of modules that pass to servers (`proxy_ssl_*`), what they come to, and the `$ssl_*`
//! variables.
//!
//! All of it is generic over a [`Subject`](weir_values::Subject). `http` and `stream` read lines by the [`SslDirective`]s of
//! [`server::rows`] and [`client_directives`], calls [`server::build`] when a block was read, and goes through
//! [`weir_tls::read_hello`] and [`server::ServerContext::accept`] with each new connection. For TLS to servers there is [`client::Settings`].
//! The protocol itself is `weir-tls`'.

pub mod client;
pub mod commands;
mod files;
mod handed;
pub mod kept;
pub mod load;
pub mod ocsp;
mod read;
mod reader;
pub mod scripted;
pub mod server;

pub use files::{CertificateFacts, KeyFileUses, KeyFiles};
pub use handed::Handed;
pub use kept::Loaded;
pub use read::{ciphers, file, file_for_each, named, passwords};
pub use reader::{DirectiveUse, NamedFile, SetDirective, SslDirective, SslReader};
pub use weir_tls::{seed_random, turn_ticket_keys};
