//! Certificates whose names have variables in them: loaded when a client asks, by the file pool's threads, and
//! kept by each loop as `ssl_certificate_cache` says.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use weir_conf::Error;
use weir_tls::{ServerConfig, ServerSettings};

use super::kept::Keep;
use super::{Conf, load};
use crate::config::Setup;
use crate::connection::Conn;
use crate::request::{Request, Scratch};
use crate::worker::Worker;
use weir_values::Template;

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
        let pairs = conf.certificates.iter().zip(&conf.keys);
        let files: Result<Vec<_>, Error> =
            pairs.map(|(chain, key)| Ok((chain.template(setup)?, key.template(setup)?))).collect();
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
            worker.certificates.keep(key, config.clone(), keep, now);
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
    for (chain, key) in names {
        settings.identities.push(load::identity_now(prefix, chain, key, passwords)?);
    }
    settings.build()
}
