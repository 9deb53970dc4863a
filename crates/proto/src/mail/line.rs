//! POP3 and SMTP: a verb and words behind it, on one line.

use memchr::memchr;

/// What the received bytes begin with.
#[derive(Debug, PartialEq, Eq)]
pub enum LineProgress<V> {
    /// The line is not whole.
    More,
    /// A command, of so many bytes.
    Command {
        /// What it says.
        command: LineCommand<V>,
        /// Its length, with the end of its line.
        len: usize,
    },
    /// A line that is no command, of so many bytes.
    Invalid {
        /// Its length.
        len: usize,
    },
}

/// A command.
#[derive(Debug, PartialEq, Eq)]
pub struct LineCommand<V> {
    /// What is to be done.
    pub verb: V,
    /// The words behind it.
    pub args: Vec<Vec<u8>>,
    /// All of the line up to the last word.
    pub text: Vec<u8>,
}

/// The commands of POP3 that a client may send before it is logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pop3Verb {
    /// The user's name.
    User,
    /// The password.
    Pass,
    /// Name and digest.
    Apop,
    /// The end.
    Quit,
    /// What is spoken here.
    Capa,
    /// Another way to log in.
    Auth,
    /// Nothing.
    Noop,
    /// TLS begins.
    Stls,
}

/// The commands of SMTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmtpVerb {
    /// The client's name.
    Helo,
    /// The same, of a client that knows extensions.
    Ehlo,
    /// A way to log in.
    Auth,
    /// The end.
    Quit,
    /// Nothing.
    Noop,
    /// The sender.
    Mail,
    /// Sender and recipients are forgotten.
    Rset,
    /// A recipient.
    Rcpt,
    /// TLS begins.
    StartTls,
    /// Known, and nothing for a client that is not logged in: VRFY, EXPN, HELP.
    Other,
}

const POP3: &[(&str, Pop3Verb)] = &[
    ("USER", Pop3Verb::User),
    ("PASS", Pop3Verb::Pass),
    ("APOP", Pop3Verb::Apop),
    ("QUIT", Pop3Verb::Quit),
    ("CAPA", Pop3Verb::Capa),
    ("AUTH", Pop3Verb::Auth),
    ("NOOP", Pop3Verb::Noop),
    ("STLS", Pop3Verb::Stls),
];

const SMTP: &[(&str, SmtpVerb)] = &[
    ("HELO", SmtpVerb::Helo),
    ("EHLO", SmtpVerb::Ehlo),
    ("AUTH", SmtpVerb::Auth),
    ("QUIT", SmtpVerb::Quit),
    ("NOOP", SmtpVerb::Noop),
    ("MAIL", SmtpVerb::Mail),
    ("RSET", SmtpVerb::Rset),
    ("RCPT", SmtpVerb::Rcpt),
    ("VRFY", SmtpVerb::Other),
    ("EXPN", SmtpVerb::Other),
    ("HELP", SmtpVerb::Other),
    ("STARTTLS", SmtpVerb::StartTls),
];

/// How many words may stand behind a verb. nginx: ngx_mail_parse.c.
const POP3_WORDS: usize = 3;
const SMTP_WORDS: usize = 11;

/// Reads a command of POP3.
pub fn pop3(input: &[u8]) -> LineProgress<Pop3Verb> {
    // A name or a password may hold spaces.
    let whole = |verb| matches!(verb, Pop3Verb::User | Pop3Verb::Pass);
    command(input, POP3, POP3_WORDS, whole)
}

/// Reads a command of SMTP.
pub fn smtp(input: &[u8]) -> LineProgress<SmtpVerb> {
    command(input, SMTP, SMTP_WORDS, |_| false)
}

/// Reads a line that answers a server's challenge: its first word, which may be empty.
pub fn answer(input: &[u8]) -> LineProgress<()> {
    let (line, len) = match line(input) {
        Line::Whole(line, len) => (line, len),
        Line::More => return LineProgress::More,
        Line::Broken(len) => return LineProgress::Invalid { len },
    };
    let word = line.split(|b| *b == b' ').next().unwrap_or_default().to_vec();
    let command = LineCommand { verb: (), args: vec![word], text: line.to_vec() };
    LineProgress::Command { command, len }
}

enum Line<'a> {
    More,
    /// Without its end, and how long it is with it.
    Whole(&'a [u8], usize),
    /// A carriage return stands elsewhere than before the end.
    Broken(usize),
}

fn line(input: &[u8]) -> Line<'_> {
    let Some(end) = memchr(b'\n', input) else { return Line::More };
    let line = input.get(..end).unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match memchr(b'\r', line) {
        Some(_) => Line::Broken(end + 1),
        None => Line::Whole(line, end + 1),
    }
}

fn command<V: Copy>(
    input: &[u8],
    verbs: &[(&str, V)],
    most: usize,
    whole: impl FnOnce(V) -> bool,
) -> LineProgress<V> {
    let (line, len) = match line(input) {
        Line::Whole(line, len) => (line, len),
        Line::More => return LineProgress::More,
        Line::Broken(len) => return LineProgress::Invalid { len },
    };
    let end = memchr(b' ', line).unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    let known = verbs.iter().find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()));
    let Some(&(_, verb)) = known else { return LineProgress::Invalid { len } };
    let args: Vec<Vec<u8>> = if whole(verb) {
        let from = rest.iter().position(|b| *b != b' ').unwrap_or(rest.len());
        rest.get(from..).filter(|word| !word.is_empty()).map(<[u8]>::to_vec).into_iter().collect()
    } else {
        rest.split(|b| *b == b' ').filter(|word| !word.is_empty()).map(<[u8]>::to_vec).collect()
    };
    if args.len() > most {
        return LineProgress::Invalid { len };
    }
    let last = line.iter().rposition(|b| *b != b' ').map_or(0, |at| at + 1);
    let text = line.get(..last).unwrap_or_default().to_vec();
    LineProgress::Command { command: LineCommand { verb, args, text }, len }
}
