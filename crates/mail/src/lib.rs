//! Sessions of mail clients (IMAP, POP3, SMTP). A client sends its credentials, an HTTP server
//! decides whether it may log in and names its mail server, and weir logs in there and relays both
//! ways. nginx: ngx_mail_*_module.
//!
//! The entry points are [`configure`], which turns the `mail` block of a configuration into a
//! [`Site`], and [`LoopState::accepted`], which gives an accepted socket to the site. `serve` runs
//! one session: `dialog` until the client has sent its credentials, `auth_http` for the HTTP
//! server's decision, `upstream` for the log-in at the mail server and the relay.
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
