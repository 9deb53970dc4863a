//! TLS to servers: the settings of a location or a server block.

use std::sync::Arc;

use weir_conf::{Directive as Line, Error, values};
use weir_engine::Handle;
use weir_tls::{
    Authorities, CertificateName, Ciphers, ClientSettings, Curves, Identity, TlsClient, Versions,
};
use weir_values::{Subject, Template};

mod computed;
mod directives;

use computed::Computed;

use crate::certificate_cache::{CacheLimits, CertificateCache};
use crate::commands::{Changed, ConfCommand};
use crate::files::KeyFiles;
use crate::load::LoadError;
use crate::read::Listed;
use crate::reader::{DirectiveUse, NamedFile, SslReader};
use crate::{load, read};

/// Settings of TLS to servers: `..._ssl_...`
#[derive(Debug, Clone)]
pub struct Settings {
    /// `..._ssl_session_reuse`
    pub reuse: bool,
    /// `..._ssl_protocols`
    pub versions: Versions,
    /// `..._ssl_ciphers`
    pub ciphers: Listed<Ciphers>,
    /// `..._ssl_name`
    pub name: Option<Template>,
    /// `..._ssl_server_name`
    pub send_name: bool,
    /// `..._ssl_verify`
    pub verify: bool,
    /// `..._ssl_verify_names`
    pub names: Arc<[CertificateName]>,
    /// `..._ssl_verify_depth`
    pub depth: u64,
    /// `..._ssl_trusted_certificate`
    pub trusted: Option<NamedFile>,
    /// `..._ssl_crl`
    pub crl: Option<NamedFile>,
    /// `..._ssl_certificate`
    pub certificate: Option<NamedFile>,
    /// `..._ssl_certificate_key`
    pub key: Option<NamedFile>,
    /// `..._ssl_password_file`
    pub passwords: Arc<Vec<Vec<u8>>>,
    /// `..._ssl_certificate_cache`
    pub cache: Option<CacheLimits>,
    /// `..._ssl_conf_command`
    pub commands: Vec<ConfCommand>,
    /// `..._ssl_alpn`, for sessions.
    pub alpn: Vec<Template>,
    /// The client of these settings, if the location uses TLS.
    built: Option<TlsClient>,
    /// The client that offers HTTP/2 by ALPN, if the location uses that.
    http2: Option<TlsClient>,
    /// The certificate and key, if their names have variables.
    computed: Option<Arc<Computed>>,
}

/// What a location uses its settings for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needed {
    /// Nothing: the URL of its servers has variables, but no TLS. Invalid settings are an error all
    /// the same, as in nginx.
    Never,
    /// For TLS.
    Tls,
    /// For HTTP/2 over TLS.
    Http2,
}

impl Needed {
    /// What a location with variables in the address of its servers needs. `plain` is the scheme
    /// without TLS.
    pub fn for_computed(address: &Template, plain: &str, needed: Needed) -> Needed {
        let scheme = address.beginning().get(..plain.len());
        match scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(plain.as_bytes())) {
            true => Needed::Never,
            false => needed,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            reuse: true,
            versions: Versions::default(),
            ciphers: Ok(Ciphers::default()),
            name: None,
            send_name: false,
            verify: false,
            names: Arc::default(),
            depth: 1,
            trusted: None,
            crl: None,
            certificate: None,
            key: None,
            passwords: Arc::default(),
            cache: None,
            commands: Vec::new(),
            alpn: Vec::new(),
            built: None,
            http2: None,
            computed: None,
        }
    }
}

impl Settings {
    /// Reads the files and builds the client, for a location that uses TLS as `needed`.
    pub fn finish<S: Subject>(
        &mut self,
        reader: &mut SslReader<'_, '_, S>,
        prefix: &str,
        needed: Needed,
    ) -> Result<(), Error> {
        let settings = self.read(reader, prefix)?;
        if needed != Needed::Never {
            let built = settings.build().map_err(Error::emerg)?;
            self.http2 = (needed == Needed::Http2).then(|| built.offering(&[HTTP2]));
            self.built = Some(built);
        }
        self.computed = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) if is_computed(certificate, key) => {
                let passwords = self.passwords.clone();
                let computed = Computed::new(reader, certificate, key, passwords, settings)?;
                Some(Arc::new(computed))
            }
            _ => None,
        };
        Ok(())
    }

    /// Reads the files. Returns the settings of TLS to a server.
    pub fn read<S: Subject>(
        &mut self,
        reader: &mut SslReader<'_, '_, S>,
        prefix: &str,
    ) -> Result<ClientSettings, Error> {
        let curves = self.apply_commands()?;
        let identity = self.identity(reader, prefix)?;
        let authorities = self.authorities(reader.files, prefix)?;
        Ok(ClientSettings {
            versions: self.versions,
            ciphers: self.ciphers.clone()?,
            curves,
            identity,
            authorities: authorities.map(Arc::new),
            names: self.names.clone(),
            send_name: self.send_name,
            reuse: self.reuse,
            alpn: Vec::new(),
        })
    }

    /// `..._ssl_protocols`
    pub fn add_versions(
        &mut self,
        directive: DirectiveUse<'_>,
        warnings: &mut Vec<Error>,
    ) -> Result<(), Error> {
        let before = (!directive.first).then_some(self.versions);
        self.versions = read::versions(warnings, directive.line, before)?;
        Ok(())
    }

    /// Applies `..._ssl_conf_command`, the only directive for curves.
    fn apply_commands(&mut self) -> Result<Curves, Error> {
        let mut changed = Changed {
            versions: self.versions,
            ciphers: self.ciphers.clone()?,
            curves: Curves::default(),
            certificate: self.certificate.take(),
            key: self.key.take(),
            verifies: self.verify,
            // Only servers issue tickets.
            tickets: true,
            prefer_server_ciphers: false,
        };
        changed.apply(self.commands.clone())?;
        (self.versions, self.ciphers) = (changed.versions, Ok(changed.ciphers));
        (self.certificate, self.key) = (changed.certificate, changed.key);
        Ok(changed.curves)
    }

    fn identity<S: Subject>(
        &self,
        reader: &mut SslReader<'_, '_, S>,
        prefix: &str,
    ) -> Result<Option<Identity>, Error> {
        let Some(certificate) = &self.certificate else { return Ok(None) };
        let name = String::from_utf8_lossy(&certificate.name);
        let Some(key) = &self.key else {
            let text = format!("no \"{prefix}_ssl_certificate_key\" is defined for certificate");
            return Err(Error::emerg(format!("{text} \"{name}\"")));
        };
        if is_computed(certificate, key) {
            return Ok(None);
        }
        load::identity(reader, certificate, key, &[], &self.passwords).map(Some)
    }

    fn authorities(
        &self,
        files: &mut KeyFiles,
        prefix: &str,
    ) -> Result<Option<Authorities>, Error> {
        if !self.verify && !self.names.is_empty() {
            let text = format!("no {prefix}_ssl_verify for {prefix}_ssl_verify_names");
            return Err(Error::emerg(text));
        }
        if !self.verify {
            return Ok(None);
        }
        let Some(trusted) = &self.trusted else {
            let text = format!("no {prefix}_ssl_trusted_certificate for {prefix}_ssl_verify");
            return Err(Error::emerg(text));
        };
        let anchors = load::certificates(files, trusted)?;
        let lists = match &self.crl {
            Some(file) => load::revocation_lists(files, file)?,
            None => Vec::new(),
        };
        let depth = u32::try_from(self.depth).unwrap_or(u32::MAX - 2);
        Ok(Some(Authorities { anchors, lists, depth }))
    }

    /// The client outside of requests, where variables have no value.
    pub fn client(&self, host: &[u8]) -> Option<TlsClient> {
        let name = self.name.as_ref().and_then(Template::constant).unwrap_or(host);
        let built = self.http2.as_ref().or(self.built.as_ref())?.named(without_port(name));
        let alpn: Vec<_> = self.alpn.iter().filter_map(Template::constant).collect();
        Some(if alpn.is_empty() { built } else { built.offering(&alpn) })
    }

    /// The TLS of connections to a server that the URL calls `host`.
    pub fn secure(&'static self, r: &mut impl Subject, host: &[u8]) -> Option<UpstreamTls> {
        let built = self.http2.as_ref().or(self.built.as_ref())?;
        let name = match &self.name {
            None => without_port(host).to_vec(),
            Some(name) => without_port(&name.eval(r)).to_vec(),
        };
        let files = self.computed.as_ref().and_then(|computed| computed.names(r));
        let mut client = built.named(&name);
        let alpn = self.alpn.iter().map(|name| name.eval(r).into_owned());
        let alpn: Vec<_> = alpn.filter(|name| (1..=255).contains(&name.len())).collect();
        if !alpn.is_empty() {
            client = client.offering(&alpn.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
        let tag = tag(&client, files.as_ref());
        let chosen = self.name.as_ref().is_some_and(|name| name.constant().is_none());
        Some(UpstreamTls { settings: self, client, name, chosen, files, alpn, tag })
    }
}

/// `..._ssl_verify_names`: names of hosts, and URIs.
pub fn names(line: &Line) -> Arc<[CertificateName]> {
    let name = |word: &[u8]| match word.windows(3).any(|part| part == b"://") {
        true => CertificateName::Uri(word.to_vec()),
        false => CertificateName::Host(word.to_vec()),
    };
    line.args.iter().map(|word| name(&word.bytes)).collect()
}

/// HTTP/2's name in ALPN.
const HTTP2: &[u8] = b"h2";

/// The TLS of the connections of one request or session.
pub struct UpstreamTls {
    settings: &'static Settings,
    client: TlsClient,
    name: Vec<u8>,
    /// The name comes from the request or session, so the server may rightly refuse it.
    pub chosen: bool,
    /// The files of certificate and key, if they have variables in their names.
    files: Option<(Vec<u8>, Vec<u8>)>,
    alpn: Vec<Vec<u8>>,
    /// A number that differs between connections with different TLS.
    pub tag: u64,
}

impl UpstreamTls {
    /// Sets the server's name, unless the configuration sets it.
    pub fn set_name(&mut self, host: &[u8]) {
        if self.settings.name.is_some() {
            return;
        }
        self.name = without_port(host).to_vec();
        self.client = self.client.named(&self.name);
        self.chosen = true;
        self.tag = tag(&self.client, self.files.as_ref());
    }

    /// The client for a new connection to the server at this address.
    pub async fn client(
        &self,
        handle: &Handle,
        known: &CertificateCache<TlsClient>,
        peer: &str,
    ) -> Result<TlsClient, LoadError> {
        let (Some(files), Some(computed)) = (&self.files, &self.settings.computed) else {
            return Ok(self.client.to_peer(peer));
        };
        let keep = self.settings.cache.as_ref();
        let loaded = computed.load(handle, files, known, keep).await?.named(&self.name);
        let alpn: Vec<_> = self.alpn.iter().map(Vec::as_slice).collect();
        let client = match self.settings.http2 {
            Some(_) => loaded.offering(&[HTTP2]),
            None if alpn.is_empty() => loaded,
            None => loaded.offering(&alpn),
        };
        Ok(client.to_peer(peer))
    }
}

/// A number that differs between connections with different TLS.
fn tag(client: &TlsClient, files: Option<&(Vec<u8>, Vec<u8>)>) -> u64 {
    client.tag() ^ files.map_or(0, computed::tag)
}

fn is_computed(certificate: &NamedFile, key: &NamedFile) -> bool {
    certificate.name.contains(&b'$') || key.name.contains(&b'$')
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

#[cfg(test)]
mod tests {
    use weir_values::Template;

    use super::{Needed, without_port};

    #[test]
    fn an_address_that_begins_with_a_plain_scheme_needs_no_tls() {
        for (address, needed) in [
            ("http://a", Needed::Never),
            ("HTTP://a", Needed::Never),
            ("https://a", Needed::Tls),
            ("http", Needed::Tls),
            ("", Needed::Tls),
        ] {
            let template = Template::text(address.as_bytes());
            assert_eq!(
                Needed::for_computed(&template, "http://", Needed::Tls),
                needed,
                "{address}"
            );
        }
    }

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
