//! The dialog with a client until it has sent its credentials.

use weir_log::Level;
use weir_proto::mail::{self, LineCommand, LineProgress};
use weir_values::Subject;

use crate::protocol::Protocol;
use crate::session::{Session, SessionEnd};
use crate::{auth, imap, pop3, smtp, tls};

/// The effect of a command.
pub enum Step {
    /// A reply.
    Reply(Vec<u8>),
    /// A reply, after which the client starts TLS.
    StartTls(Vec<u8>),
    /// A reply, after which the session ends.
    LastReply(Vec<u8>),
    /// The client has sent its credentials.
    LogIn,
    /// The command is not allowed now, or lacks an argument.
    Invalid,
    /// The line is no command. With `ends`, the start of the next command cannot be found.
    NoCommand { ends: bool },
}

/// Runs the dialog until the client has sent its credentials.
pub async fn log_in(s: &mut Session) -> Result<(), SessionEnd> {
    let most = match s.protocol() {
        Protocol::Pop3 => s.conf().pop3.buffer,
        Protocol::Imap => s.conf().imap.buffer,
        Protocol::Smtp => s.conf().smtp.buffer,
    };
    // How many unread bytes have been searched for a line end.
    let mut searched = 0;
    loop {
        // A command ends with a line end.
        let has_line = s.unread.get(searched..).is_some_and(|new| new.contains(&b'\n'));
        let step = if has_line { next(s) } else { None };
        let Some(step) = step else {
            searched = s.unread.len();
            if searched >= most {
                let text = String::from_utf8_lossy(&s.unread);
                s.log(Level::Info, format_args!("client sent too long command \"{text}\""));
                if s.protocol() == Protocol::Imap && s.challenge.is_none() {
                    s.tag = mail::imap_tag(&s.unread).to_vec();
                }
                return Err(SessionEnd::Reply(invalid(s)));
            }
            s.receive(most).await?;
            continue;
        };
        searched = 0;
        match step {
            Step::Reply(text) => s.send(text).await?,
            Step::LastReply(text) => return Err(SessionEnd::Reply(text)),
            Step::LogIn => return Ok(()),
            Step::StartTls(text) => {
                s.send(text).await?;
                begin_tls(s).await?;
            }
            Step::Invalid => {
                let text = invalid(s);
                s.send(text).await?;
            }
            Step::NoCommand { ends } => {
                s.errors += 1;
                let too_many = s.errors >= s.conf().max_errors;
                if too_many {
                    let text = "client sent too many invalid commands";
                    s.log(Level::Info, format_args!("{text}"));
                }
                let text = invalid(s);
                if too_many || ends {
                    return Err(SessionEnd::Reply(text));
                }
                s.send(text).await?;
            }
        }
    }
}

/// The next command, or the response to a challenge. `None`: it is incomplete.
fn next(s: &mut Session) -> Option<Step> {
    if let Some(challenge) = s.challenge {
        return auth::response(s, challenge);
    }
    match s.protocol() {
        Protocol::Pop3 => pop3::command(s),
        Protocol::Imap => imap::command(s),
        Protocol::Smtp => smtp::command(s),
    }
}

/// The next line of POP3 or SMTP as a command. `None`: it is incomplete.
pub fn line<V>(
    s: &mut Session,
    read: fn(&[u8]) -> LineProgress<V>,
) -> Option<Result<LineCommand<V>, Step>> {
    let (result, len) = match read(&s.unread) {
        LineProgress::More => return None,
        LineProgress::Invalid { len } => (Err(Step::NoCommand { ends: false }), len),
        LineProgress::Command { command, len } => (Ok(command), len),
    };
    s.unread.drain(..len);
    Some(result)
}

/// Resets the log-in after an invalid command, and returns the reply.
fn invalid(s: &mut Session) -> Vec<u8> {
    s.challenge = None;
    s.has_user = false;
    let tag: &[u8] = if s.tag.is_empty() { b"* " } else { &s.tag };
    s.protocol().invalid_command(tag).into_owned()
}

/// Starts TLS. What the client sent before is forgotten (RFC 3207, section 4.2).
async fn begin_tls(s: &mut Session) -> Result<(), SessionEnd> {
    s.unread.clear();
    s.hello = Default::default();
    s.starttls = true;
    s.doing = "in starttls state";
    Box::pin(tls::begin(s)).await?;
    s.doing = "in auth state";
    Ok(())
}
