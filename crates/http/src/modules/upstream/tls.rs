//! TLS to servers: what a location says of it, and the handshake.

use std::sync::Arc;

use weir_conf::{Error, values};
use weir_engine::Stream;
use weir_log::Level;
use weir_tls::{
    Authorities, Ciphers, Client, ClientSettings, HandshakeError, Identity, Secured, Versions,
};
use weir_upstream::Failure;

use super::client::{Waited, wait};
use super::fault::{CLIENT_GONE, Fault, operation};
use super::passing::Passing;
use crate::configure::Setup;
use crate::modules::ssl::{Named, load};
use crate::request::Request;
use crate::template::Template;

/// Settings of TLS to servers: `..._ssl_...`
#[derive(Debug, Clone)]
pub struct Settings {
    /// `..._ssl_session_reuse`
    pub reuse: bool,
    /// `..._ssl_protocols`
    pub versions: Versions,
    /// `..._ssl_ciphers`
    pub ciphers: Ciphers,
    /// `..._ssl_name`
    pub name: Option<Template>,
    /// `..._ssl_server_name`
    pub send_name: bool,
    /// `..._ssl_verify`
    pub verify: bool,
    /// `..._ssl_verify_depth`
    pub depth: u64,
    /// `..._ssl_trusted_certificate`
    pub trusted: Option<Named>,
    /// `..._ssl_crl`
    pub crl: Option<Named>,
    /// `..._ssl_certificate`
    pub certificate: Option<Named>,
    /// `..._ssl_certificate_key`
    pub key: Option<Named>,
    /// `..._ssl_password_file`
    pub passwords: Arc<Vec<Vec<u8>>>,
    /// What all this amounts to, where a location needs it.
    pub built: Option<Client>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            reuse: true,
            versions: Versions::default(),
            ciphers: Ciphers::default(),
            name: None,
            send_name: false,
            verify: false,
            depth: 1,
            trusted: None,
            crl: None,
            certificate: None,
            key: None,
            passwords: Arc::default(),
            built: None,
        }
    }
}

impl Settings {
    /// Reads the files and puts all together, for a location that speaks TLS to servers.
    pub fn finish(&mut self, setup: &mut Setup<'_>, prefix: &str) -> Result<(), Error> {
        let identity = self.identity(setup, prefix)?;
        let authorities = self.authorities(setup, prefix)?;
        let settings = ClientSettings {
            versions: self.versions,
            ciphers: self.ciphers.clone(),
            identity,
            authorities: authorities.map(Arc::new),
            send_name: self.send_name,
            reuse: self.reuse,
            alpn: Vec::new(),
        };
        self.built = Some(settings.build().map_err(Error::emerg)?);
        Ok(())
    }

    fn identity(&self, setup: &mut Setup<'_>, prefix: &str) -> Result<Option<Identity>, Error> {
        let Some(certificate) = &self.certificate else { return Ok(None) };
        let name = String::from_utf8_lossy(&certificate.name);
        let Some(key) = &self.key else {
            let text = format!("no \"{prefix}_ssl_certificate_key\" is defined for certificate");
            return Err(Error::emerg(format!("{text} \"{name}\"")));
        };
        if [certificate, key].iter().any(|file| file.name.contains(&b'$')) {
            let text = "is known with variables in it, but that is not built into weir yet";
            return Err(certificate.at.error(format!("\"{prefix}_ssl_certificate\" {text}")));
        }
        load::identity(setup, certificate, key, &self.passwords).map(Some)
    }

    fn authorities(
        &self,
        setup: &mut Setup<'_>,
        prefix: &str,
    ) -> Result<Option<Authorities>, Error> {
        if !self.verify {
            return Ok(None);
        }
        let Some(trusted) = &self.trusted else {
            let text = format!("no {prefix}_ssl_trusted_certificate for {prefix}_ssl_verify");
            return Err(Error::emerg(text));
        };
        let anchors = load::certificates(setup, trusted)?;
        let lists = match &self.crl {
            Some(file) => load::revocation_lists(setup, file)?,
            None => Vec::new(),
        };
        let depth = u32::try_from(self.depth).unwrap_or(u32::MAX - 2);
        Ok(Some(Authorities { anchors, lists, depth }))
    }

    /// How to open TLS to a server that the URL calls `host`.
    pub fn client(&self, r: &mut Request, host: &[u8]) -> Option<Client> {
        let name = match &self.name {
            None => without_port(host).to_vec(),
            Some(name) => without_port(&name.eval(r)).to_vec(),
        };
        Some(self.built.as_ref()?.named(&name))
    }
}

/// A host without the port behind it.
fn without_port(host: &[u8]) -> &[u8] {
    if let Some(rest) = host.strip_prefix(b"[") {
        let end = rest.iter().position(|b| *b == b']');
        return end.and_then(|end| rest.get(..end)).unwrap_or(rest);
    }
    match host.iter().rposition(|b| *b == b':') {
        Some(at) if host.get(at + 1..).is_some_and(|port| values::number(port).is_some()) => {
            host.get(..at).unwrap_or(host)
        }
        _ => host,
    }
}

/// Goes through the handshake on a new connection.
pub async fn handshake(
    r: &Request,
    passing: &Passing,
    stream: &Stream,
    client: &Client,
) -> Result<Secured, Fault> {
    stream.set_deadline(Some(r.worker.handle.now() + passing.connect_timeout));
    let done = match wait(r, passing, Secured::connect(stream, client), true).await {
        Waited::Gone => return Err(CLIENT_GONE),
        Waited::For(done) => done,
    };
    stream.set_deadline(None);
    done.map_err(|error| Fault::Peer(failed(r, &error)))
}

fn failed(r: &Request, error: &HandshakeError) -> Failure {
    let doing = super::fault::Doing::Securing;
    match error {
        HandshakeError::TimedOut => {
            operation(r, "SSL_do_handshake()", &std::io::ErrorKind::TimedOut.into(), doing)
        }
        error => {
            r.log(Level::Error, format_args!("{error} {}", doing.text()));
            Failure::Error
        }
    }
}

/// The directives that set a module's `passing.tls`, as `passing_directives!` does for the rest.
macro_rules! tls_directives {
    ($module:ident, $prefix:literal) => {{
        use std::sync::Arc;

        use weir_conf::Directive as Line;

        use $crate::modules::ssl::read;
        use $crate::modules::upstream::tls;
        use $crate::scope::{Directive, Scope, Set};

        macro_rules! one {
            ($name:literal, $help:literal, $set:expr) => {
                Directive {
                    name: concat!($prefix, $name),
                    help: $help,
                    set: Set::Simple(|s, d| {
                        s.once(d)?;
                        let conf = Scope::change(&mut s.location.$module);
                        let set: fn(
                            &mut tls::Settings,
                            &mut $crate::configure::Setup<'_>,
                            &Line,
                        ) -> Result<(), weir_conf::Error> = $set;
                        set(Arc::make_mut(&mut conf.passing.tls), s.setup, d)
                    }),
                }
            };
        }
        macro_rules! value {
            ($name:literal, $field:ident, $read:expr, $help:literal) => {
                one!($name, $help, |tls, _, d| {
                    tls.$field = $read(d)?;
                    Ok(())
                })
            };
        }
        &[
            value!("ssl_session_reuse", reuse, Line::flag, "Whether sessions are resumed."),
            Directive {
                name: concat!($prefix, "ssl_protocols"),
                help: "Versions of TLS: TLSv1.2 and TLSv1.3, older ones do not exist here.",
                set: Set::Simple(|s, d| {
                    let first = s.first(d);
                    let before = s.location.$module.passing.tls.versions;
                    let versions = read::versions(s, d, (!first).then_some(before))?;
                    let conf = Scope::change(&mut s.location.$module);
                    Arc::make_mut(&mut conf.passing.tls).versions = versions;
                    Ok(())
                }),
            },
            one!("ssl_ciphers", "Ciphers of TLS 1.2, as OpenSSL's cipher list.", |tls, _, d| {
                read::ciphers(&mut tls.ciphers, d)
            }),
            one!(
                "ssl_name",
                "The name that the server's certificate is checked for, and that is sent to it.",
                |tls, setup, d| {
                    let Some(word) = d.args.first() else { return Ok(()) };
                    let name = $crate::template::Template::new(&mut setup.variables, &word.bytes);
                    tls.name = Some(name.map_err(|e| d.error_at(word, e))?);
                    Ok(())
                }
            ),
            value!("ssl_server_name", send_name, Line::flag, "Whether the name is sent (SNI)."),
            value!("ssl_verify", verify, Line::flag, "Whether the certificate is checked."),
            value!(
                "ssl_verify_depth",
                depth,
                Line::number,
                "How many authorities may stand between the certificate and the root."
            ),
            value!(
                "ssl_trusted_certificate",
                trusted,
                read::file,
                "Authorities that vouch for servers."
            ),
            value!("ssl_crl", crl, read::file, "Lists of revoked certificates."),
            value!(
                "ssl_certificate",
                certificate,
                read::file,
                "The certificate that servers are shown."
            ),
            value!("ssl_certificate_key", key, read::file, "The key of that certificate."),
            one!("ssl_password_file", "Passwords of the key, one a line.", |tls, setup, d| {
                tls.passwords = read::passwords(setup, d)?;
                Ok(())
            }),
        ]
    }};
}
pub(crate) use tls_directives;

#[cfg(test)]
mod tests {
    use super::without_port;

    #[test]
    fn a_port_is_no_part_of_the_name() {
        for (host, name) in [
            ("a:1", "a"),
            ("a", "a"),
            ("[::1]:8443", "::1"),
            ("[::1]", "::1"),
            ("127.0.0.1:1", "127.0.0.1"),
            ("", ""),
        ] {
            assert_eq!(without_port(host.as_bytes()), name.as_bytes(), "{host}");
        }
    }
}
