//! Properties and texts of the three protocols.

use std::borrow::Cow;

/// A protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// POP3
    Pop3,
    /// IMAP
    Imap,
    /// SMTP
    Smtp,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Protocol; 3] = [Protocol::Pop3, Protocol::Imap, Protocol::Smtp];

    /// The name in `protocol` and in ALPN.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Pop3 => "pop3",
            Protocol::Imap => "imap",
            Protocol::Smtp => "smtp",
        }
    }

    /// The ports that imply the protocol if `protocol` is not set.
    pub fn ports(self) -> &'static [u16] {
        match self {
            Protocol::Pop3 => &[110, 995],
            Protocol::Imap => &[143, 993],
            Protocol::Smtp => &[25, 465, 587],
        }
    }

    /// The last reply if weir or an upstream server failed.
    pub fn internal_error(self) -> &'static [u8] {
        match self {
            Protocol::Pop3 => b"-ERR internal server error\r\n",
            Protocol::Imap => b"* BAD internal server error\r\n",
            Protocol::Smtp => b"451 4.3.2 Internal server error\r\n",
        }
    }

    /// The last reply if the client's certificate is not valid.
    pub fn bad_certificate(self) -> &'static [u8] {
        match self {
            Protocol::Pop3 => b"-ERR SSL certificate error\r\n",
            Protocol::Imap => b"* BYE SSL certificate error\r\n",
            Protocol::Smtp => b"421 4.7.1 SSL certificate error\r\n",
        }
    }

    /// The last reply if the client sent no certificate.
    pub fn no_certificate(self) -> &'static [u8] {
        match self {
            Protocol::Pop3 => b"-ERR No required SSL certificate\r\n",
            Protocol::Imap => b"* BYE No required SSL certificate\r\n",
            Protocol::Smtp => b"421 4.7.1 No required SSL certificate\r\n",
        }
    }

    /// The prefix of a challenge.
    pub fn challenge(self) -> &'static [u8] {
        match self {
            Protocol::Pop3 | Protocol::Imap => b"+ ",
            Protocol::Smtp => b"334 ",
        }
    }

    /// The reply to an invalid command. `tag` is IMAP's.
    pub fn invalid_command(self, tag: &[u8]) -> Cow<'static, [u8]> {
        match self {
            Protocol::Pop3 => b"-ERR invalid command\r\n".into(),
            Protocol::Imap => [tag, b"BAD invalid command\r\n"].concat().into(),
            Protocol::Smtp => b"500 5.5.1 Invalid command\r\n".into(),
        }
    }
}
