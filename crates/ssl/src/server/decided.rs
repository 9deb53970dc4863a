//! What scripts decide in a handshake: certificates, versions and client authentication.

use std::sync::Arc;

use weir_engine::Stream;
use weir_tls::{
    Authorities, ExternalSessions, Hello, Identity, IdentitySet, PendingHandshake, RawHello,
    ServerConfig, ServerSettings, Versions,
};

use super::Verify;
use super::accept::AcceptError;
use super::context::{Certificates, ServerContext};

/// The decisions of scripts. What they leave open is as configured.
#[derive(Debug, Default)]
pub struct Decided {
    /// The certificates.
    pub certificates: Option<IdentitySet>,
    /// An OCSP response to staple to the certificates.
    pub staple: Option<Vec<u8>>,
    /// The versions of TLS.
    pub versions: Option<Versions>,
    /// The client must be asked for a certificate.
    pub demand: Option<Demand>,
    /// Sessions of TLS 1.2 that scripts store.
    pub sessions: Option<Arc<ExternalSessions>>,
}

/// How a client's certificate is requested and verified.
#[derive(Debug)]
pub struct Demand {
    /// Certificates of authorities whose names the client is sent, in DER.
    pub hints: Vec<Vec<u8>>,
    /// The authorities that it must lead to.
    pub authorities: Authorities,
}

impl Decided {
    /// Scripts have set certificates, so the configured ones are not needed.
    pub fn is_certified(&self) -> bool {
        self.certificates.is_some()
    }
}

/// A configuration, and whether signing with its key takes long.
pub(super) type Chosen = (Arc<ServerConfig>, bool);

impl ServerContext {
    /// The configured certificates, except for those whose files depend on the client.
    pub fn own_certificates(&self) -> IdentitySet {
        IdentitySet::new(self.open.as_ref().map_or(&[], |open| open.identities.as_slice()))
    }

    /// The configured versions.
    pub fn versions(&self) -> Versions {
        self.open.as_ref().map(|open| open.versions).unwrap_or_default()
    }

    /// How many authorities may stand between a client's certificate and the root.
    pub fn depth(&self) -> u32 {
        self.authorities.depth
    }

    /// The settings that verify a client's certificate by this demand. If the configuration
    /// requests no certificate, no client is refused.
    pub fn demanding(&self, demand: &Demand) -> Arc<ServerContext> {
        let verify = if self.verify == Verify::Off { Verify::Shown } else { self.verify };
        Arc::new(ServerContext {
            certificates: Certificates::None,
            quic: Certificates::None,
            verify,
            authorities: Arc::new(demand.authorities.clone()),
            ocsp: None,
            reject: false,
            slow: false,
            open: None,
            _tickets: None,
        })
    }

    /// The numbers of the configured cipher suites.
    pub fn ciphers(&self) -> Vec<u16> {
        self.open.as_ref().map(|open| open.ciphers.numbers(open.versions)).unwrap_or_default()
    }

    /// Whether scripts may change the settings.
    pub fn is_scripted(&self) -> bool {
        self.open.is_some()
    }

    /// Whether a session with this client would be stored by its ID, as in TLS 1.2 without tickets.
    pub fn keeps_by_id(&self, hello: &RawHello, decided: &Decided) -> bool {
        const TLS13: u16 = 0x0304;
        const SESSION_TICKET: u16 = 35;
        let Some(open) = &self.open else { return false };
        let is_newer = decided.versions.unwrap_or(open.versions).tls13
            && hello.versions().is_some_and(|all| all.contains(&TLS13));
        let has_ticket = open.tickets.is_some() && hello.extension(SESSION_TICKET).is_some();
        !is_newer && !has_ticket
    }

    /// Answers a client that resumes a session. Scripts choose no certificate for it.
    pub async fn resume(
        &self,
        hello: &Hello,
        decided: &Decided,
        socket: &Stream,
    ) -> Option<PendingHandshake> {
        let open = self.open.as_ref()?;
        let (shown, versions) = (open.identities.first()?, decided.versions);
        let Certificates::Fixed(config) = &self.certificates else { return None };
        let versions = versions.unwrap_or(open.versions);
        let config = with_versions(open, Some(config.clone()), versions).ok()?;
        let config = with_external_sessions(open, config, decided);
        socket.handle().heavy().await;
        hello.resume(&config, shown)
    }

    /// The configuration for a connection. `own` is the one with these certificates, if they depend
    /// on the client.
    ///
    /// # Errors
    ///
    /// No certificate or no version is left.
    pub fn decide(
        &self,
        certificates: &Certificates,
        own: Option<Arc<ServerConfig>>,
        decided: Decided,
    ) -> Result<Chosen, AcceptError> {
        let fixed = match certificates {
            Certificates::Fixed(config) => Some(config.clone()),
            _ => own,
        };
        let Some(open) = &self.open else {
            return Ok((fixed.ok_or(AcceptError::NoCertificate)?, self.slow));
        };
        let versions = decided.versions.unwrap_or(open.versions);
        let config = match &decided.demand {
            Some(demand) => build(&with_demand(open, versions, demand), fixed.as_deref()),
            None => with_versions(open, fixed, versions),
        }?;
        let config = with_external_sessions(open, config, &decided);
        self.with_certificates(config, decided)
    }

    /// The configuration for a QUIC connection, if it is known except for the decisions.
    ///
    /// # Errors
    ///
    /// See [`ServerContext::decide`].
    pub fn decide_over_quic(
        &self,
        mut config: Arc<ServerConfig>,
        decided: Decided,
    ) -> Result<Arc<ServerConfig>, AcceptError> {
        let Some(open) = &self.open else { return Ok(config) };
        let versions = decided.versions.unwrap_or(open.versions);
        if !versions.tls13 {
            return Err(AcceptError::NoVersion);
        }
        if let Some(demand) = &decided.demand {
            let settings = with_demand(open, versions, demand);
            config = settings.build_for_quic_beside(&config).map_err(|_| AcceptError::NoVersion)?;
        }
        Ok(self.with_certificates(config, decided)?.0)
    }

    /// The configuration with the certificates that scripts have set, if any.
    fn with_certificates(
        &self,
        config: Arc<ServerConfig>,
        decided: Decided,
    ) -> Result<Chosen, AcceptError> {
        let own = || decided.staple.as_ref().map(|_| self.own_certificates());
        let is_chosen = decided.certificates.is_some();
        let Some(set) = decided.certificates.or_else(own) else {
            return Ok((config, self.slow));
        };
        let mut identities = set.identities();
        match (identities.is_empty(), is_chosen) {
            (true, true) => return Err(AcceptError::NoCertificate),
            // The files depend on the client: no response can be stapled.
            (true, false) => return Ok((config, self.slow)),
            (false, _) => {}
        }
        if let Some(response) = decided.staple {
            identities.iter_mut().for_each(|identity| identity.staple(response.clone()));
        }
        let slow = identities.iter().any(Identity::is_slow);
        Ok((weir_tls::with_identities(&config, &identities), slow))
    }
}

/// The configuration with these versions of TLS and the same sessions.
fn with_versions(
    open: &ServerSettings,
    own: Option<Arc<ServerConfig>>,
    versions: Versions,
) -> Result<Arc<ServerConfig>, AcceptError> {
    match own {
        Some(config) if versions == open.versions => Ok(config),
        own => build(&ServerSettings { versions, ..open.clone() }, own.as_deref()),
    }
}

/// The configuration with sessions that scripts store. A demand for a client's certificate excludes
/// them: sessions are not bound to it.
fn with_external_sessions(
    open: &ServerSettings,
    config: Arc<ServerConfig>,
    decided: &Decided,
) -> Arc<ServerConfig> {
    match &decided.sessions {
        Some(sessions) if decided.demand.is_none() => {
            open.with_external_sessions(&config, sessions)
        }
        _ => config,
    }
}

/// The settings with a demand for a client's certificate. They resume no session, since sessions
/// are not bound to the demand.
fn with_demand(open: &ServerSettings, versions: Versions, demand: &Demand) -> ServerSettings {
    ServerSettings {
        versions,
        ask_client: Some(demand.hints.clone()),
        tickets: None,
        cache: None,
        early_data: 0,
        ..open.clone()
    }
}

fn build(
    settings: &ServerSettings,
    own: Option<&ServerConfig>,
) -> Result<Arc<ServerConfig>, AcceptError> {
    if settings.versions == Versions::NONE {
        return Err(AcceptError::NoVersion);
    }
    let config = match own {
        Some(own) => settings.build_beside(own),
        None => settings.build(),
    };
    config.map_err(|_| AcceptError::NoVersion)
}
