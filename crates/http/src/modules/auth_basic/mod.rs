//! Authenticates clients by user name and password. nginx: ngx_http_auth_basic_module.
//!
//! A thread of the pool reads the user file and hashes the password, since both may take long.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use weir_conf::{Directive as Line, Error};
use weir_engine::Boxed;
use weir_log::{Cause, Level};
use weir_proto::http1::Method;

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::files;
use crate::phases::{Answer, Step};
use crate::request::Request;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};
use crate::variables::credentials;
use weir_values::Template;

mod cache;
mod password;
mod users;

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    realm: Option<Template>,
    user_file: Option<Template>,
    /// The directory that a relative name of the user file starts from.
    directory: PathBuf,
}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "auth_basic",
        help: "The realm for authentication by user name and password, or `off`.",
        set: Set::Simple(realm),
    },
    Directive {
        name: "auth_basic_user_file",
        help: "The file with user names and hashed passwords.",
        set: Set::Simple(user_file),
    },
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_auth_basic", directives: DIRECTIVES, ..Module::NEW };

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    CONF.of(conf).realm.is_some() && CONF.of(conf).user_file.is_some()
}

/// Whether every request needs a password: the realm is constant and not `off`.
pub fn asks_every_client(conf: &Conf) -> bool {
    conf.realm.as_ref().and_then(Template::constant).is_some_and(|realm| realm != b"off")
}

/// The handler of the access phase.
pub fn handler(r: &mut Request) -> Answer<'_> {
    let conf = CONF.of(r.conf());
    let (Some(realm), Some(file)) = (&conf.realm, &conf.user_file) else {
        return Answer::Now(Step::Next);
    };
    let realm = realm.eval(r).into_owned();
    if realm == b"off" {
        return Answer::Now(Step::Next);
    }
    let Some((user, password)) = credentials(r) else {
        let text = format_args!("no user/password was provided for basic authentication");
        r.log(Level::Info, text);
        return Answer::Now(challenge(r, &realm));
    };
    let name = file.eval(r).into_owned();
    if files::climbs(r, &name, file) {
        return Answer::Now(Step::Status(403));
    }
    let path = conf.directory.join(OsStr::from_bytes(&name));
    Answer::Later(Boxed::new(move || authenticate(r, realm, user, password, path)))
}

/// The result of a look-up in the user file.
enum PasswordVerdict {
    Right,
    Wrong,
    NoSuchUser,
    UnknownForm,
    NoFile(io::Error),
}

async fn authenticate(
    r: &mut Request,
    realm: Vec<u8>,
    user: Vec<u8>,
    password: Vec<u8>,
    path: PathBuf,
) -> Step {
    let shown = weir_log::Bytes(&user).to_string();
    let file = path.clone();
    // Verifying a hash may take seconds, and any client may cause it. As a write, it gets at most
    // half of the pool's threads, and the other half is left for files.
    let verdict = r.event_loop.handle.files().write(move || look_up(file, &user, &password)).await;
    let path = path.display();
    match verdict.unwrap_or_else(PasswordVerdict::NoFile) {
        PasswordVerdict::Right => Step::Done,
        PasswordVerdict::Wrong => {
            r.log(Level::Error, format_args!("user \"{shown}\": password mismatch"));
            challenge(r, &realm)
        }
        PasswordVerdict::NoSuchUser => {
            r.log(Level::Error, format_args!("user \"{shown}\" was not found in \"{path}\""));
            challenge(r, &realm)
        }
        PasswordVerdict::UnknownForm => {
            r.log(Level::Crit, format_args!("crypt_r() failed (22: Invalid argument)"));
            Step::Status(500)
        }
        PasswordVerdict::NoFile(error) => {
            let (level, status) = match error.kind() {
                io::ErrorKind::NotFound => (Level::Error, 403),
                _ => (Level::Crit, 500),
            };
            r.log(level, format_args!("open() \"{path}\" failed {}", Cause(&error)));
            Step::Status(status)
        }
    }
}

/// Looks the user up and verifies the password. Runs on a thread of the pool.
fn look_up(path: PathBuf, user: &[u8], password: &[u8]) -> PasswordVerdict {
    let kept = match cache::password_of(&path, user) {
        Ok(Some(kept)) => kept,
        Ok(None) => return PasswordVerdict::NoSuchUser,
        Err(error) => return PasswordVerdict::NoFile(error),
    };
    match password::matches(password, &kept) {
        Some(true) => PasswordVerdict::Right,
        Some(false) => PasswordVerdict::Wrong,
        None => PasswordVerdict::UnknownForm,
    }
}

/// Asks the client to authenticate.
fn challenge(r: &mut Request, realm: &[u8]) -> Step {
    let value = [b"Basic realm=\"", realm, b"\""].concat();
    // A client that sends CONNECT sees this server as a proxy.
    let (name, status): (&[u8], u16) = match r.method {
        Method::Connect => (b"Proxy-Authenticate", 407),
        _ => (b"WWW-Authenticate", 401),
    };
    r.response.headers.add(name, &value);
    Step::Status(status)
}

fn realm(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let Some(word) = d.arg(0) else { return Ok(()) };
    let value = s.setup.line(d, word)?;
    CONF.change(&mut s.location).realm = Some(value);
    Ok(())
}

fn user_file(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let Some(word) = d.arg(0) else { return Ok(()) };
    let value = s.setup.template(d, word)?;
    let directory = s.setup.inputs.conf_prefix.to_owned();
    let conf = CONF.change(&mut s.location);
    (conf.user_file, conf.directory) = (Some(value), directory);
    Ok(())
}
