//! What a client and weir say to each other until the client has given its credentials.

use weir_log::Level;
use weir_proto::mail::{self, LineCommand, LineProgress};
use weir_values::Subject;

use crate::protocol::Protocol;
use crate::session::{Session, SessionEnd};
use crate::{auth, imap, pop3, smtp, tls};

/// What follows from a command.
pub enum Step {
    /// An answer.
    Say(Vec<u8>),
    /// An answer, after which the client begins TLS.
    StartTls(Vec<u8>),
    /// The last answer.
    Bye(Vec<u8>),
    /// The client has given its credentials.
    LogIn,
    /// This is no time for the command, or it lacks something.
    Invalid,
    /// The line is no command. With `ends`, it is not known where the next one begins.
    Garbage { ends: bool },
}

/// Goes on until the client has given its credentials.
pub async fn log_in(s: &mut Session) -> Result<(), SessionEnd> {
    let most = match s.protocol() {
        Protocol::Pop3 => s.conf().pop3.buffer,
        Protocol::Imap => s.conf().imap.buffer,
        Protocol::Smtp => s.conf().smtp.buffer,
    };
    // How much of what is there is a part of a command.
    let mut looked = 0;
    loop {
        // Only the end of a line ends a command.
        let has_line = s.unread.get(looked..).is_some_and(|new| new.contains(&b'\n'));
        let step = if has_line { next(s) } else { None };
        let Some(step) = step else {
            looked = s.unread.len();
            if looked >= most {
                let text = String::from_utf8_lossy(&s.unread);
                s.log(Level::Info, format_args!("client sent too long command \"{text}\""));
                if s.protocol() == Protocol::Imap && s.challenge.is_none() {
                    s.tag = mail::imap_tag(&s.unread).to_vec();
                }
                return Err(SessionEnd::Told(invalid(s)));
            }
            s.hear(most).await?;
            continue;
        };
        looked = 0;
        match step {
            Step::Say(text) => s.say(text).await?,
            Step::Bye(text) => return Err(SessionEnd::Told(text)),
            Step::LogIn => return Ok(()),
            Step::StartTls(text) => {
                s.say(text).await?;
                begin_tls(s).await?;
            }
            Step::Invalid => {
                let text = invalid(s);
                s.say(text).await?;
            }
            Step::Garbage { ends } => {
                s.errors += 1;
                let too_many = s.errors >= s.conf().max_errors;
                if too_many {
                    let text = "client sent too many invalid commands";
                    s.log(Level::Info, format_args!("{text}"));
                }
                let text = invalid(s);
                if too_many || ends {
                    return Err(SessionEnd::Told(text));
                }
                s.say(text).await?;
            }
        }
    }
}

/// The next command, or the answer to a challenge, if it is whole.
fn next(s: &mut Session) -> Option<Step> {
    if let Some(challenge) = s.challenge {
        return auth::answered(s, challenge);
    }
    match s.protocol() {
        Protocol::Pop3 => pop3::command(s),
        Protocol::Imap => imap::command(s),
        Protocol::Smtp => smtp::command(s),
    }
}

/// The next line of POP3 or SMTP as a command, if it is whole.
pub fn line<V>(
    s: &mut Session,
    read: fn(&[u8]) -> LineProgress<V>,
) -> Option<Result<LineCommand<V>, Step>> {
    let (result, len) = match read(&s.unread) {
        LineProgress::More => return None,
        LineProgress::Invalid { len } => (Err(Step::Garbage { ends: false }), len),
        LineProgress::Command { command, len } => (Ok(command), len),
    };
    s.unread.drain(..len);
    Some(result)
}

/// All begins anew for a client whose line makes no sense here.
fn invalid(s: &mut Session) -> Vec<u8> {
    s.challenge = None;
    s.named = false;
    let tag: &[u8] = if s.tag.is_empty() { b"* " } else { &s.tag };
    s.protocol().invalid_command(tag).into_owned()
}

/// What the client has sent before TLS counts no more (RFC 3207, section 4.2).
async fn begin_tls(s: &mut Session) -> Result<(), SessionEnd> {
    s.unread.clear();
    s.hello = Default::default();
    s.starttls = true;
    s.doing = "in starttls state";
    Box::pin(tls::begin(s)).await?;
    s.doing = "in auth state";
    Ok(())
}
