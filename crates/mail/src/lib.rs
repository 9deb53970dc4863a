//! Sessions of mail clients (IMAP, POP3, SMTP): a client logs in, a server of HTTP says whether it may and to which server it
//! leads, and weir logs in there and passes on what both sides send. nginx: ngx_mail_*_module.
//!
//! The entry points are [`configure`], which turns the `mail` block of a configuration into a [`Site`], and
//! [`LoopState::accepted`], which gives an accepted socket to the site. `serve` is one session's way: `dialog` until the client has
//! given its credentials, `auth_http` for what the server of HTTP says of them, `upstream` for the rest.
//!
//! - In: the `mail` block, accepted sockets.
//! - Out: sessions with servers.
//! - Callers: `server`.

mod auth;
mod auth_http;
mod config;
mod dialog;
mod directives;
mod event_loop;
mod imap;
mod pop3;
mod protocol;
mod serve;
mod session;
mod settings;
mod site;
mod smtp;
mod tls;
mod upstream;

pub use config::configure;
pub use directives::{MailDirective, directive};
pub use event_loop::LoopState;
pub use site::Site;

/// nginx's names of the modules that weir has for mail.
pub const MODULES: &[&str] = &[
    "mail",
    "mail_auth_http",
    "mail_core",
    "mail_imap",
    "mail_pop3",
    "mail_proxy",
    "mail_realip",
    "mail_smtp",
    "mail_ssl",
];
