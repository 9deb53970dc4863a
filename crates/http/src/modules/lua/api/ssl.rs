//! The modules `ngx.ssl` and `ngx.ssl.clienthello`: reading a handshake and changing its outcome.

use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;

use mlua::{BString, Lua, UserDataRef};
use weir_ssl::server::{Demand, Handshake, TlsSubject};
use weir_tls::{Authorities, Chain, IdentitySet, PrivateKey, Versions, is_grease, key_to_der};

use super::natives::{Natives, failed};
use crate::address::Address;
use crate::escape::hex_text;
use crate::event_loop::LoopState;
use crate::modules::lua::current::{self, NgxError, Phase, Scripted, phase, with_any};
use crate::modules::lua::vm::vm_of;
use crate::request::Request;

/// Certificates, as a script holds them.
pub(super) struct ChainHandle(pub(super) Chain);

impl mlua::UserData for ChainHandle {}

/// A private key, as a script holds it.
pub(super) struct KeyHandle(pub(super) PrivateKey);

impl mlua::UserData for KeyHandle {}

type ChainRef = UserDataRef<ChainHandle>;

/// A value, or nil and the error.
pub(super) type Answer<T> = (Option<T>, Option<String>);

const TLS12: u16 = 0x0303;
const TLS13: u16 = 0x0304;

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    parsing(natives)?;
    choosing(natives)?;
    connection(natives)?;
    sessions(natives)?;
    client_hello(natives)
}

/// The module `ngx.ssl.session`.
fn sessions(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add_refusing("ssl_session_id", |_, ()| {
        in_session(|phase, handshake| match phase {
            Phase::SessionFetch => Some(BString::from(hex_text(&handshake.hello.session))),
            _ => begun(handshake).map(|(id, _)| BString::from(hex_text(&id))),
        })
    })?;
    natives.add_refusing("ssl_session_get", |_, ()| {
        in_session(|phase, handshake| match phase {
            Phase::SessionStore => begun(handshake).map(|(_, session)| BString::from(session)),
            _ => None,
        })
    })?;
    natives.add_refusing("ssl_session_set", |_, session: BString| {
        in_session(|phase, handshake| {
            let sessions = handshake.decided.sessions.as_ref();
            let sessions = sessions.filter(|_| phase == Phase::SessionFetch)?;
            sessions.offer(session.to_vec());
            Some(true)
        })
    })
}

/// Calls `look` with the handshake, in a phase about TLS sessions. Without a result it returns an
/// error.
fn in_session<T>(
    look: impl FnOnce(Phase, &mut Handshake) -> Option<T>,
) -> Result<Answer<T>, NgxError> {
    let phase = phase();
    if !matches!(phase, Phase::SessionFetch | Phase::SessionStore) {
        return Ok((None, Some("bad lua context".to_owned())));
    }
    let (found, why) = handshake(|handshake| look(phase, handshake))?;
    let none = || "bad session in lua context".to_owned();
    Ok(match found.flatten() {
        Some(found) => (Some(found), None),
        None => (None, Some(why.unwrap_or_else(none))),
    })
}

fn begun(handshake: &Handshake) -> Option<(Vec<u8>, Vec<u8>)> {
    handshake.decided.sessions.as_ref().and_then(|sessions| sessions.created())
}

/// Functions that read certificates and keys, in any phase.
fn parsing(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add("ssl_cert_to_der", |_, pem: BString| {
        answer(chain_of_pem(&pem).map(|chain| BString::from(chain.to_der())))
    })?;
    natives.add("ssl_key_to_der", |_, (pem, password): (BString, Option<BString>)| {
        answer(key_der(&pem, password.as_deref().map(|p| &**p)).map(BString::from))
    })?;
    natives.add_refusing("ssl_parse_cert", |lua, (text, is_pem): (BString, bool)| {
        handle(lua, chain_of(&text, is_pem).map(ChainHandle))
    })?;
    natives.add_refusing("ssl_parse_key", |lua, (text, is_pem): (BString, bool)| {
        let key = match is_pem {
            true => key_der(&text, None).and_then(|der| key_of(&der, "PEM_read_bio_PrivateKey()")),
            false => key_of(&text, "d2i_PrivateKey_bio()"),
        };
        handle(lua, key.map(KeyHandle))
    })
}

/// Functions that set the certificate for the client.
fn choosing(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add_refusing("ssl_clear_certs", |_, ()| {
        handshake(|handshake| {
            handshake.decided.certificates = Some(IdentitySet::default());
            true
        })
    })?;
    natives.add_refusing("ssl_set_cert", |_, chain: ChainRef| set_chain(chain.0.clone()))?;
    natives.add_refusing("ssl_set_der_cert", |_, der: BString| match chain_of(&der, false) {
        Ok(chain) => set_chain(chain),
        Err(text) => Ok((None, Some(text))),
    })?;
    natives.add_refusing("ssl_set_key", |_, key: UserDataRef<KeyHandle>| set_key(key.0.clone()))?;
    natives.add_refusing("ssl_set_der_key", |_, der: BString| {
        match key_of(&der, "d2i_PrivateKey_bio()") {
            Ok(key) => set_key(key),
            Err(text) => Ok((None, Some(text))),
        }
    })?;
    natives.add_refusing("ssl_verify_client", |_, (own, depth, more): Verifying| {
        if phase() != Phase::Certificate {
            return Ok((None, Some("API disabled in the current context".to_owned())));
        }
        handshake(|handshake| {
            let demand = demand(handshake, own.as_deref(), depth, more.as_deref());
            handshake.decided.demand = Some(demand);
            true
        })
    })
}

/// Functions that read the connection.
fn connection(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add_refusing("ssl_server_name", |_, ()| {
        Ok(match secured()? {
            Ok(secured) => (secured.server_name, None),
            Err(text) => (None, Some(text.to_owned())),
        })
    })?;
    natives.add_refusing("ssl_address", |_, is_own: bool| {
        let seen = secured()?.map(|SecuredEnds { peer, local, .. }| {
            raw_address(if is_own { &local } else { &peer })
        });
        Ok(match seen {
            Ok((bytes, kind)) => (Some(BString::from(bytes)), Some(kind), None),
            Err(text) => (None, None, Some(text)),
        })
    })?;
    natives.add_refusing("ssl_server_port", |_, ()| {
        let port = secured()?.map(|secured| secured.local.port());
        Ok(answer(port.and_then(|port| port.ok_or("unix domain has no port"))))
    })?;
    natives.add_refusing("ssl_version", |_, ()| {
        Ok(answer(secured()?.map(|secured| secured.version)))
    })?;
    natives.add_refusing("ssl_client_random", |_, ()| {
        handshake(|handshake| BString::from(handshake.hello.random.to_vec()))
    })?;
    natives.add_refusing("ssl_shared_ciphers", |_, ()| {
        handshake(|handshake| {
            let own = handshake.context.as_ref().map(|context| context.ciphers());
            let theirs = &handshake.hello.ciphers;
            own.unwrap_or_default().into_iter().filter(|id| theirs.contains(id)).collect::<Vec<_>>()
        })
    })
}

/// Functions of `ssl_client_hello_by_lua`.
fn client_hello(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add_refusing("hello_ciphers", |_, ()| {
        hello(|handshake| plain(handshake.hello.ciphers.iter().copied()))
    })?;
    natives.add_refusing("hello_extensions", |_, ()| {
        hello(|handshake| plain(handshake.hello.extensions.iter().map(|(kind, _)| *kind)))
    })?;
    natives.add_refusing("hello_extension", |_, kind: f64| {
        let contents = |handshake: &mut Handshake| {
            handshake.hello.extension(kind as u16).map(|bytes| BString::from(bytes.to_vec()))
        };
        if kind < 0.0 || kind > f64::from(u16::MAX) { Ok(None) } else { hello(contents) }
    })?;
    natives.add_refusing("hello_set_versions", |_, (tls12, tls13): (bool, bool)| {
        hello(|handshake| handshake.decided.versions = Some(Versions { tls12, tls13 }))
    })
}

/// The authorities that are announced to the client, the depth, and further authorities.
type Verifying = (Option<ChainRef>, Option<f64>, Option<ChainRef>);

pub(super) fn answer<T>(result: Result<T, impl Into<String>>) -> Answer<T> {
    match result {
        Ok(value) => (Some(value), None),
        Err(text) => (None, Some(text.into())),
    }
}

fn handle<T: mlua::UserData + 'static>(
    lua: &Lua,
    made: Result<T, String>,
) -> Result<Answer<mlua::AnyUserData>, NgxError> {
    match made {
        Ok(value) => Ok((Some(lua.create_userdata(value).map_err(failed)?), None)),
        Err(text) => Ok((None, Some(text))),
    }
}

pub(super) fn chain_of(text: &[u8], is_pem: bool) -> Result<Chain, String> {
    let chain = match is_pem {
        true => return chain_of_pem(text).map_err(str::to_owned),
        false if text.is_empty() => Err("invalid argument"),
        false => Chain::from_der(text).ok_or("d2i_X509_bio() failed"),
    };
    chain.map_err(str::to_owned)
}

/// Certificates in PEM. OpenSSL reads the first one by another function than the rest, which shows
/// in the errors.
fn chain_of_pem(text: &[u8]) -> Result<Chain, &'static str> {
    const END: &[u8] = b"-----END CERTIFICATE-----";
    Chain::from_pem(text).map_err(|_| {
        let first = memchr::memmem::find(text, END).and_then(|at| text.get(..at + END.len()));
        match first.map(Chain::from_pem) {
            Some(Ok(_)) => "PEM_read_bio_X509() failed",
            _ => "PEM_read_bio_X509_AUX() failed",
        }
    })
}

fn key_der(pem: &[u8], password: Option<&[u8]>) -> Result<Vec<u8>, String> {
    let der = key_to_der(pem, password);
    der.map_err(|error| format!("PEM_read_bio_PrivateKey() failed ({error})"))
}

/// Parses a key, or finds it in the cache.
pub(super) fn key_of(der: &[u8], reader: &str) -> Result<PrivateKey, String> {
    let event_loop = LoopState::current();
    let vm = event_loop.as_ref().and_then(|event_loop| vm_of(event_loop));
    let key = match vm {
        Some(vm) => vm.keys.borrow_mut().read(der),
        None => PrivateKey::from_der(der),
    };
    key.map_err(|error| match der {
        [] => "invalid argument".to_owned(),
        _ => format!("{reader} failed ({error})"),
    })
}

fn set_chain(chain: Chain) -> Result<Answer<bool>, NgxError> {
    decide(|set| set.set_chain(chain).then_some(true).ok_or("SSL_use_certificate() failed"))
}

fn set_key(key: PrivateKey) -> Result<Answer<bool>, NgxError> {
    decide(|set| set.set_key(key).map(|()| true).map_err(|_| "SSL_use_PrivateKey() failed"))
}

/// Changes the certificates of the connection. The first change starts with those of the
/// configuration.
fn decide(
    change: impl FnOnce(&mut IdentitySet) -> Result<bool, &'static str>,
) -> Result<Answer<bool>, NgxError> {
    let done = handshake_or(|handshake| {
        let Handshake { context, decided, .. } = handshake;
        let own = || context.as_ref().map(|context| context.own_certificates());
        change(decided.certificates.get_or_insert_with(|| own().unwrap_or_default()))
    })?;
    Ok(answer(done.and_then(|done| done)))
}

fn demand(
    handshake: &Handshake,
    own: Option<&ChainHandle>,
    depth: Option<f64>,
    more: Option<&ChainHandle>,
) -> Demand {
    let certificates = |chain: Option<&ChainHandle>| -> Vec<Vec<u8>> {
        chain.into_iter().flat_map(|chain| chain.0.each()).map(<[u8]>::to_vec).collect()
    };
    let context = handshake.context.as_deref();
    let configured = context.map(|context| context.authorities.as_ref().clone());
    let mut authorities = configured.unwrap_or_default();
    if let Some(depth) = depth.filter(|depth| *depth >= 0.0) {
        authorities.depth = depth as u32;
    }
    let hints = certificates(own);
    if own.is_some() || more.is_some() {
        let anchors = hints.iter().cloned().chain(certificates(more)).collect();
        authorities = Authorities { anchors, lists: Vec::new(), depth: authorities.depth };
    }
    Demand { hints, authorities }
}

/// Calls `look` with the handshake, or returns an error if there is none.
fn handshake_or<T>(
    look: impl FnOnce(&mut Handshake) -> T,
) -> Result<Result<T, &'static str>, NgxError> {
    if phase() == Phase::Timer {
        return Ok(Err("bad request"));
    }
    let over = "the handshake is over";
    if current::has_session() {
        let done = current::with_session(|s| s.handshake().map(look).ok_or(over));
        return done.ok_or(NgxError::NoRequest);
    }
    with_any(|r| r.contexts.handshake.as_deref_mut().map(look).ok_or(over))
}

pub(super) fn handshake<T>(look: impl FnOnce(&mut Handshake) -> T) -> Result<Answer<T>, NgxError> {
    Ok(answer(handshake_or(look)?))
}

/// Calls `look` with the handshake, in the phase of the client hello.
fn hello<T>(look: impl FnOnce(&mut Handshake) -> T) -> Result<T, NgxError> {
    match phase() {
        Phase::ClientHello => handshake_or(look)?.map_err(NgxError::from),
        _ => Err(NgxError::NoRequest),
    }
}

/// What is known of a TLS connection.
struct SecuredEnds {
    server_name: Option<String>,
    peer: Address,
    local: Address,
    /// The version that was or will be negotiated.
    version: u16,
}

/// Calls `look` with the connection, or returns an error if it does not use TLS.
fn secured() -> Result<Result<SecuredEnds, &'static str>, NgxError> {
    if phase() == Phase::Timer {
        return Ok(Err("bad request"));
    }
    if let Some(ends) = current::with_session(of_session) {
        return Ok(ends.ok_or("bad request"));
    }
    with_any(|r| of_request(r).ok_or("bad request"))
}

fn of_session(s: &mut Scripted) -> Option<SecuredEnds> {
    let server_name = s.shown()?.server_name.clone().map(String::from);
    let [peer, local] = s.ends().map(Address::clone);
    let agreed = s.tls_version();
    let version = s.handshake().map_or_else(|| number(agreed), |handshake| coming(handshake));
    Some(SecuredEnds { server_name, peer, local, version })
}

fn of_request(r: &mut Request) -> Option<SecuredEnds> {
    let server_name = r.shown()?.server_name.clone().map(String::from);
    let (peer, local) = (r.conn.peer.clone(), r.conn.local().clone());
    let version = match r.contexts.handshake.as_deref() {
        Some(handshake) => coming(handshake),
        None => number(r.tls(|agreed| agreed.protocol())),
    };
    Some(SecuredEnds { server_name, peer, local, version })
}

/// The number of a version.
pub(super) fn number(name: Option<&str>) -> u16 {
    if name == Some("TLSv1.3") { TLS13 } else { TLS12 }
}

/// The version that will be negotiated.
fn coming(handshake: &Handshake) -> u16 {
    let own = handshake.context.as_ref().map(|context| context.versions());
    let own = handshake.decided.versions.or(own).unwrap_or_default();
    let theirs = handshake.hello.versions().unwrap_or_default();
    if own.tls13 && theirs.contains(&TLS13) { TLS13 } else { TLS12 }
}

/// The bytes of an address, and its kind.
fn raw_address(address: &Address) -> (Vec<u8>, &'static str) {
    match address {
        Address::Inet(inet) => match inet.ip() {
            IpAddr::V4(ip) => (ip.octets().to_vec(), "inet"),
            IpAddr::V6(ip) => (ip.octets().to_vec(), "inet6"),
        },
        Address::Unix(path) => (path.as_os_str().as_bytes().to_vec(), "unix"),
        Address::Unknown => (Vec::new(), "unix"),
    }
}

/// Numbers without GREASE values (RFC 8701).
fn plain(all: impl Iterator<Item = u16>) -> Vec<u16> {
    all.filter(|id| !is_grease(*id)).collect()
}
