//! The SASL mechanisms that the protocols share: PLAIN, LOGIN, CRAM-MD5 and EXTERNAL (RFC 4954,
//! 5034, 3501). nginx: ngx_mail_auth_* in ngx_mail_handler.c and ngx_mail_parse.c.

use weir_log::Level;
use weir_proto::base64::{self, Alphabet};
use weir_proto::mail;
use weir_values::Subject;

use crate::dialog::{self, Step};
use crate::session::{Challenge, LoginMethod, Session};
use crate::settings::{Methods, StartTls};

/// `Username:` and `Password:` in Base64.
const USERNAME: &[u8] = b"VXNlcm5hbWU6";
const PASSWORD: &[u8] = b"UGFzc3dvcmQ6";

/// Length of a CRAM-MD5 digest in hexadecimal digits.
const DIGEST: usize = 32;

/// Whether the client must start TLS before it logs in.
pub fn needs_tls(s: &Session) -> bool {
    s.conf().starttls == StartTls::Only && !s.is_secured()
}

/// Whether the client may start TLS.
pub fn may_begin_tls(s: &Session) -> bool {
    s.conf().starttls != StartTls::Off && !s.is_secured()
}

/// `AUTH` or `AUTHENTICATE`: starts a mechanism. As in nginx, PLAIN and LOGIN are always accepted.
pub fn authenticate(s: &mut Session, args: &[Vec<u8>], methods: Methods) -> Step {
    let (method, first) = match args {
        [method] => (method, None),
        [method, first] => (method, Some(first)),
        _ => return Step::Invalid,
    };
    let name = method.to_ascii_uppercase();
    match (name.as_slice(), first) {
        (b"LOGIN", None) => challenge(s, Challenge::Username, USERNAME),
        (b"LOGIN", Some(name)) => username(s, name),
        (b"PLAIN", None) => challenge(s, Challenge::Plain, b""),
        (b"PLAIN", Some(both)) => plain(s, both),
        (b"CRAM-MD5", None) if methods.cram_md5 => {
            let mut text = Vec::new();
            base64::encode(Alphabet::Plain, salt(s), &mut text);
            challenge(s, Challenge::CramMd5, &text)
        }
        (b"EXTERNAL", None) if methods.external => challenge(s, Challenge::External, USERNAME),
        (b"EXTERNAL", Some(name)) if methods.external => external(s, name),
        _ => Step::Invalid,
    }
}

/// Reads the client's response to a challenge. `None`: its line is incomplete.
pub fn response(s: &mut Session, challenge: Challenge) -> Option<Step> {
    let word = match dialog::line(s, mail::answer)? {
        Err(no_command) => return Some(no_command),
        Ok(mut command) => command.args.pop().unwrap_or_default(),
    };
    Some(match challenge {
        Challenge::Username => username(s, &word),
        Challenge::Password => password(s, &word),
        Challenge::Plain => plain(s, &word),
        Challenge::CramMd5 => cram_md5(s, &word),
        Challenge::External => external(s, &word),
    })
}

/// The timestamp of APOP and CRAM-MD5, new for each session.
pub fn salt(s: &mut Session) -> &[u8] {
    if s.salt.is_empty() {
        let mut number = [0; 8];
        // Without random bytes, the session's number stands in: it is not used twice either.
        if s.event_loop.handle.fill_random(&mut number).is_err() {
            number = s.number().to_ne_bytes();
        }
        let (number, now) = (u64::from_ne_bytes(number), s.event_loop.handle.wall().secs);
        s.salt = format!("<{number}.{now}@").into_bytes();
        s.salt.extend_from_slice(&s.conf().server_name);
        s.salt.push(b'>');
    }
    &s.salt
}

fn challenge(s: &mut Session, challenge: Challenge, text: &[u8]) -> Step {
    s.challenge = Some(challenge);
    Step::Reply([s.protocol().challenge(), text, b"\r\n"].concat())
}

/// Decodes a word from Base64, and logs a failure.
fn decoded(s: &Session, word: &[u8], method: &str) -> Option<Vec<u8>> {
    let text = base64::decode(Alphabet::Plain, word);
    if text.is_none() {
        let text = "client sent invalid base64 encoding in AUTH";
        s.log(Level::Info, format_args!("{text} {method} command"));
    }
    text
}

fn username(s: &mut Session, word: &[u8]) -> Step {
    let Some(name) = decoded(s, word, "LOGIN") else { return Step::Invalid };
    s.login = name;
    challenge(s, Challenge::Password, PASSWORD)
}

fn password(s: &mut Session, word: &[u8]) -> Step {
    let Some(password) = decoded(s, word, "LOGIN") else { return Step::Invalid };
    log_in_with(s, LoginMethod::Plain, Some(password))
}

/// Reads the response of PLAIN: an authorization identity, which is ignored, a name and a password,
/// each after a zero byte (RFC 4616).
fn plain(s: &mut Session, word: &[u8]) -> Step {
    let Some(text) = decoded(s, word, "PLAIN") else { return Step::Invalid };
    let mut parts = text.splitn(3, |b| *b == 0).skip(1);
    let missing = match (parts.next(), parts.next()) {
        (Some(name), Some(password)) => {
            s.login = name.to_vec();
            let password = password.to_vec();
            return log_in_with(s, LoginMethod::Plain, Some(password));
        }
        (Some(name), None) if !name.is_empty() => "password",
        _ => "login",
    };
    s.log(Level::Info, format_args!("client sent invalid {missing} in AUTH PLAIN command"));
    Step::Invalid
}

/// Reads the response of CRAM-MD5: a name, a space, and a digest in hexadecimal digits.
fn cram_md5(s: &mut Session, word: &[u8]) -> Step {
    let Some(text) = decoded(s, word, "CRAM-MD5") else { return Step::Invalid };
    let mut parts = text.splitn(2, |b| *b == b' ');
    let (name, digest) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    s.login = name.to_vec();
    if digest.len() != DIGEST {
        let text = "client sent invalid CRAM-MD5 hash in AUTH CRAM-MD5 command";
        s.log(Level::Info, format_args!("{text}"));
        return Step::Invalid;
    }
    log_in_with(s, LoginMethod::CramMd5, Some(digest.to_vec()))
}

fn external(s: &mut Session, word: &[u8]) -> Step {
    let Some(name) = decoded(s, word, "EXTERNAL") else { return Step::Invalid };
    s.login = name;
    log_in_with(s, LoginMethod::External, None)
}

/// Stores the credentials, for the log-in to begin.
pub fn log_in_with(s: &mut Session, method: LoginMethod, password: Option<Vec<u8>>) -> Step {
    (s.method, s.password, s.challenge) = (method, password, None);
    Step::LogIn
}
