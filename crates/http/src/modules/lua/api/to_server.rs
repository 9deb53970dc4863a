//! The modules `ngx.ssl.proxysslcert`, `ngx.ssl.proxysslverify` and `ngx.proxyssl`: reading a
//! handshake with an upstream server, and changing its outcome.

use mlua::{BString, UserDataRef};
use weir_tls::{Chain, IdentitySet, PrivateKey};

use super::natives::Natives;
use super::ssl::{Answer, ChainHandle, KeyHandle, answer, chain_of, key_of, number};
use crate::modules::lua::current::{NgxError, Phase, phase, with};
use crate::request::passed::ServerHandshake;

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add_refusing("server_clear_certs", |_, ()| {
        choose(|own| {
            *own = IdentitySet::default();
            Ok(())
        })
    })?;
    natives.add_refusing("server_set_cert", |_, chain: UserDataRef<ChainHandle>| {
        set_chain(chain.0.clone())
    })?;
    natives.add_refusing("server_set_der_cert", |_, der: BString| match chain_of(&der, false) {
        Ok(chain) => set_chain(chain),
        Err(text) => Ok((None, Some(text))),
    })?;
    natives
        .add_refusing("server_set_key", |_, key: UserDataRef<KeyHandle>| set_key(key.0.clone()))?;
    natives.add_refusing("server_set_der_key", |_, der: BString| {
        match key_of(&der, "d2i_PrivateKey_bio()") {
            Ok(key) => set_key(key),
            Err(text) => Ok((None, Some(text))),
        }
    })?;
    natives.add_refusing("server_set_result", |_, result: f64| {
        judging(|handshake| {
            handshake.result = result as i32;
            true
        })
    })?;
    natives.add_refusing("server_result", |_, ()| judging(|handshake| handshake.result))?;
    natives.add_refusing("server_cert", |_, ()| {
        judging(|handshake| handshake.chain.first().cloned().map(BString::from))
    })?;
    natives.add_refusing("server_version", |_, ()| {
        Ok(match handshake(|handshake| handshake.version)? {
            Ok(Some(name)) => (Some(number(Some(name))), None),
            Ok(None) => (None, Some("the version is not known before the handshake".to_owned())),
            Err(text) => (None, Some(text.to_owned())),
        })
    })
}

/// Calls `look` with the handshake, or returns an error if there is none at present.
fn handshake<T>(
    look: impl FnOnce(&mut ServerHandshake) -> T,
) -> Result<Result<T, &'static str>, NgxError> {
    with(|r| r.contexts.upstream.handshake.as_deref_mut().map(look).ok_or("bad ssl conn"))
}

fn choose(
    change: impl FnOnce(&mut IdentitySet) -> Result<(), &'static str>,
) -> Result<Answer<bool>, NgxError> {
    only(Phase::ServerCertificate)?;
    let done = handshake(|handshake| change(handshake.own.get_or_insert_default()))?;
    Ok(answer(done.and_then(|done| done).map(|()| true)))
}

fn judging<T>(look: impl FnOnce(&mut ServerHandshake) -> T) -> Result<Answer<T>, NgxError> {
    only(Phase::ServerVerify)?;
    Ok(answer(handshake(look)?))
}

fn only(wanted: Phase) -> Result<(), NgxError> {
    if phase() == wanted { Ok(()) } else { Err(NgxError::NoRequest) }
}

fn set_chain(chain: Chain) -> Result<Answer<bool>, NgxError> {
    choose(|own| own.set_chain(chain).then_some(()).ok_or("SSL_use_certificate() failed"))
}

fn set_key(key: PrivateKey) -> Result<Answer<bool>, NgxError> {
    choose(|own| own.set_key(key).map_err(|_| "SSL_use_PrivateKey() failed"))
}
