//! Commands of mail clients before they are logged in: POP3 (RFC 1939, 2595, 5034), IMAP (RFC 3501, 7888) and SMTP (RFC 5321,
//! 3207, 4954), as far as a proxy has to understand them.

mod imap;
mod line;
#[cfg(test)]
mod tests;

pub use imap::{ImapCommand, ImapProgress, ImapVerb, imap, imap_tag};
pub use line::{LineCommand, LineProgress, Pop3Verb, SmtpVerb, answer, pop3, smtp};
