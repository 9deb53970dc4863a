//! Certificates whose names have variables in them: loaded when a client asks, by the file pool's threads, and
//! kept by each loop as `ssl_certificate_cache` says.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_conf::{Directive as Line, Error, values};
use weir_tls::{Identity, ServerConfig, ServerSettings};

use super::{Conf, Named};
use crate::configure::Setup;
use crate::connection::Conn;
use crate::request::{Request, Scratch};
use crate::scope::Scope;
use crate::template::Template;
use crate::worker::Worker;

/// The certificates of one server.
#[derive(Debug)]
pub struct Computed {
    files: Vec<(Template, Template)>,
    prefix: PathBuf,
    passwords: Arc<Vec<Vec<u8>>>,
    /// All but the certificates.
    settings: ServerSettings,
    keep: Option<Keep>,
}

/// `ssl_certificate_cache`
#[derive(Debug, Clone, Copy)]
pub struct Keep {
    max: u64,
    inactive: Duration,
    valid: Duration,
}

/// What a loop has loaded.
#[derive(Debug, Default)]
pub struct Loaded(RefCell<HashMap<Key, Entry>>);

/// A server's settings, and its files in order.
type Key = (usize, Vec<(Vec<u8>, Vec<u8>)>);

#[derive(Debug)]
struct Entry {
    config: Arc<ServerConfig>,
    loaded: Instant,
    used: Instant,
}

/// Whether certificates or keys have variables in their names.
pub fn is_computed(conf: &Conf) -> bool {
    conf.certificates.iter().chain(&conf.keys).any(|file| file.name.contains(&b'$'))
}

impl Computed {
    /// Compiles the names.
    pub fn new(
        conf: &Conf,
        setup: &mut Setup<'_>,
        settings: ServerSettings,
    ) -> Result<Self, Error> {
        let mut compile = |file: &Named| {
            let name = Template::new(&mut setup.variables, &file.name);
            name.map_err(|text| file.at.error(text))
        };
        let pairs = conf.certificates.iter().zip(&conf.keys);
        let files: Result<Vec<_>, Error> =
            pairs.map(|(chain, key)| Ok((compile(chain)?, compile(key)?))).collect();
        let files = files?;
        let prefix = setup.inputs.conf_prefix.to_owned();
        let passwords = conf.passwords.clone();
        Ok(Computed { files, prefix, passwords, settings, keep: conf.certificate_cache })
    }

    /// The configuration for a client; the connection comes back with it. The error is for the log.
    pub async fn config(
        &self,
        conn: Conn,
        worker: &Rc<Worker>,
    ) -> Result<(Conn, Arc<ServerConfig>), (Option<Conn>, String)> {
        let conn = Rc::new(conn);
        let names = self.names(&conn, worker);
        let Ok(conn) = Rc::try_unwrap(conn) else { return Err((None, "held".to_owned())) };
        match self.load(names, worker).await {
            Ok(config) => Ok((conn, config)),
            Err(text) => Err((Some(conn), text)),
        }
    }

    /// What the files are called for this client.
    fn names(&self, conn: &Rc<Conn>, worker: &Rc<Worker>) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut r = Request::new(conn.clone(), worker.clone(), Scratch::default());
        let each = self.files.iter();
        each.map(|(chain, key)| (chain.eval(&mut r).into_owned(), key.eval(&mut r).into_owned()))
            .collect()
    }

    async fn load(
        &self,
        names: Vec<(Vec<u8>, Vec<u8>)>,
        worker: &Worker,
    ) -> Result<Arc<ServerConfig>, String> {
        let key = (std::ptr::from_ref(self).addr(), names);
        let now = worker.handle.now();
        if let Some(keep) = &self.keep
            && let Some(config) = worker.certificates.find(&key, keep, now)
        {
            return Ok(config);
        }
        let (names, prefix) = (key.1.clone(), self.prefix.clone());
        let (passwords, settings) = (self.passwords.clone(), self.settings.clone());
        let loading = move || read(&names, &prefix, &passwords, settings);
        let loaded = worker.handle.files().run(loading).await;
        let config = loaded.map_err(|error| error.to_string())??;
        if let Some(keep) = &self.keep {
            worker.certificates.keep(key, &config, keep, now);
        }
        Ok(config)
    }
}

/// Reads files and puts the configuration together; takes its time.
fn read(
    names: &[(Vec<u8>, Vec<u8>)],
    prefix: &std::path::Path,
    passwords: &[Vec<u8>],
    mut settings: ServerSettings,
) -> Result<Arc<ServerConfig>, String> {
    let mut files = super::Files::default();
    for (chain, key) in names {
        let mut contents = |what, name: &[u8]| {
            let read = files.read(prefix, name);
            read.map_err(|error| cannot_load(what, name, &format!("BIO_new_file() failed {error}")))
        };
        let (pem, secret) = (contents("certificate", chain)?, contents("certificate key", key)?);
        let identity = Identity::load(&pem, &secret, passwords).map_err(|(_, text)| {
            cannot_load("certificate", chain, &format!("PEM_read_bio() failed (SSL: {text})"))
        })?;
        settings.identities.push(identity);
    }
    settings.build()
}

fn cannot_load(what: &str, name: &[u8], why: &str) -> String {
    // What is given in place of a name may be a secret.
    let name = if name.starts_with(b"data:") { b"data:" } else { name };
    format!("cannot load {what} \"{}\": {why}", String::from_utf8_lossy(name))
}

impl Loaded {
    fn find(&self, key: &Key, keep: &Keep, now: Instant) -> Option<Arc<ServerConfig>> {
        let mut entries = self.0.borrow_mut();
        let entry = entries.get_mut(key)?;
        let old = now.saturating_duration_since(entry.loaded) > keep.valid
            || now.saturating_duration_since(entry.used) > keep.inactive;
        if old {
            entries.remove(key);
            return None;
        }
        entry.used = now;
        Some(entry.config.clone())
    }

    /// Keeps one more of a server's; who has waited longest for a client goes.
    fn keep(&self, key: Key, config: &Arc<ServerConfig>, keep: &Keep, now: Instant) {
        let mut entries = self.0.borrow_mut();
        let of_server = |k: &&Key| k.0 == key.0;
        while entries.keys().filter(of_server).count() as u64 >= keep.max {
            let own = entries.iter().filter(|(k, _)| k.0 == key.0);
            let Some(oldest) = own.min_by_key(|(_, e)| e.used).map(|(k, _)| k.clone()) else {
                break;
            };
            entries.remove(&oldest);
        }
        entries.insert(key, Entry { config: config.clone(), loaded: now, used: now });
    }
}

/// `ssl_certificate_cache off | max=N [inactive=TIME] [valid=TIME]`
pub fn cache(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let (mut max, mut off) = (None, false);
    let (mut inactive, mut valid) = (Duration::from_secs(10), Duration::from_secs(60));
    for word in &d.args {
        let bad = || d.error_at(word, format!("invalid parameter \"{}\"", word.lossy()));
        let seconds = |text| values::sec(text).map(Duration::from_secs).ok_or_else(bad);
        match word.bytes.as_slice() {
            b"off" => off = true,
            text if text.starts_with(b"max=") => {
                let n = text.get(4..).and_then(values::number).filter(|n| *n > 0);
                max = Some(n.ok_or_else(bad)?);
            }
            text if text.starts_with(b"inactive=") => {
                inactive = seconds(text.get(9..).unwrap_or_default())?;
            }
            text if text.starts_with(b"valid=") => {
                valid = seconds(text.get(6..).unwrap_or_default())?;
            }
            _ => return Err(bad()),
        }
    }
    let keep = match (off, max) {
        (true, _) => None,
        (false, Some(max)) => Some(Keep { max, inactive, valid }),
        (false, None) => {
            let text = "\"ssl_certificate_cache\" must have the \"max\" parameter";
            return Err(d.error(text));
        }
    };
    Scope::change(&mut s.location.ssl).certificate_cache = keep;
    Ok(())
}
