//! `ssl_conf_command`: settings by OpenSSL's names.

use weir_conf::Error;
use weir_tls::{Curves, Versions};

use super::{Conf, Named};

/// Changes the settings as the commands say.
pub fn apply(conf: &mut Conf) -> Result<(), Error> {
    for (name, value) in std::mem::take(&mut conf.commands) {
        let text = String::from_utf8_lossy(&value).into_owned();
        let command = String::from_utf8_lossy(&name.name).to_ascii_lowercase();
        if !one(conf, &command, &text, &name) {
            let command = String::from_utf8_lossy(&name.name);
            let text = format!("SSL_CONF_cmd(\"{command}\", \"{text}\") failed");
            return Err(name.at.error(format!("{text} (SSL: weir has nothing of that name)")));
        }
    }
    Ok(())
}

fn one(conf: &mut Conf, command: &str, value: &str, named: &Named) -> bool {
    let file = || Named { name: value.as_bytes().to_vec(), at: named.at };
    match command {
        "certificate" => conf.certificates = vec![file()],
        "privatekey" => conf.keys = vec![file()],
        "cipherstring" => return conf.ciphers.set(value),
        "ciphersuites" => return conf.ciphers.set_tls13(value),
        "groups" | "curves" => match Curves::parse(value) {
            Ok((curves, _)) => conf.curves = curves,
            Err(_) => return false,
        },
        "minprotocol" => match value {
            "TLSv1.3" => conf.versions.tls12 = false,
            "TLSv1.2" | "TLSv1.1" | "TLSv1" | "None" => {}
            _ => return false,
        },
        "maxprotocol" => match value {
            "TLSv1.2" => conf.versions.tls13 = false,
            "TLSv1.3" | "None" => {}
            _ => return false,
        },
        "protocol" => return protocol(&mut conf.versions, value),
        "options" => return value.split(',').all(|word| option(conf, word.trim())),
        _ => return false,
    }
    conf.versions != Versions::NONE
}

/// `Protocol -TLSv1.3,+TLSv1.2`
fn protocol(versions: &mut Versions, value: &str) -> bool {
    for word in value.split(',') {
        let (on, name) = signed(word.trim());
        match name {
            "TLSv1.2" => versions.tls12 = on,
            "TLSv1.3" => versions.tls13 = on,
            "ALL" => *versions = Versions { tls12: on, tls13: on },
            "SSLv2" | "SSLv3" | "TLSv1" | "TLSv1.1" if !on => {}
            _ => return false,
        }
    }
    *versions != Versions::NONE
}

fn option(conf: &mut Conf, word: &str) -> bool {
    let (on, name) = signed(word);
    match name {
        "SessionTicket" => conf.tickets = on,
        "ServerPreference" => conf.prefer_server_ciphers = on,
        // What rustls does, or does not, in any case: these only confirm it.
        "PrioritizeChaCha" | "KTLS" | "AntiReplay" => {}
        "UnsafeLegacyRenegotiation"
        | "Compression"
        | "DHSingle"
        | "ECDHSingle"
        | "NoRenegotiation"
        | "EncryptThenMac"
        | "MiddleboxCompat"
        | "Bugs" => {}
        _ => return false,
    }
    true
}

fn signed(word: &str) -> (bool, &str) {
    match word.strip_prefix('-') {
        Some(name) => (false, name),
        None => (true, word.strip_prefix('+').unwrap_or(word)),
    }
}
