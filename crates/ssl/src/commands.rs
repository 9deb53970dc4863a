//! `..._conf_command`: settings by OpenSSL's names.

use weir_conf::{Directive, Error};
use weir_tls::{Chosen, Ciphers, Curves, Versions};

use crate::read::named;
use crate::reader::NamedFile;

/// A command: its name and its value.
pub type ConfCommand = (NamedFile, Vec<u8>);

/// `..._conf_command NAME VALUE`. It is interpreted once the whole block was read.
pub fn command(d: &Directive) -> Option<ConfCommand> {
    Some((named(d)?, d.arg(1)?.bytes.clone()))
}

/// The settings that commands may change, for servers and for clients.
#[derive(Debug)]
pub struct Changed {
    /// `Protocol`, `MinProtocol`, `MaxProtocol`
    pub versions: Versions,
    /// `CipherString`, `Ciphersuites`
    pub ciphers: Ciphers,
    /// `Groups`
    pub curves: Curves,
    /// `Certificate`
    pub certificate: Option<NamedFile>,
    /// `PrivateKey`
    pub key: Option<NamedFile>,
    /// The peer's certificate is verified. `VerifyMode Peer` is accepted only then.
    pub verifies: bool,
    /// `Options SessionTicket`, of servers.
    pub tickets: bool,
    /// `Options ServerPreference`, of servers.
    pub prefer_server_ciphers: bool,
}

impl Changed {
    /// Applies the commands in order.
    pub fn apply(&mut self, commands: Vec<ConfCommand>) -> Result<(), Error> {
        for (name, value) in commands {
            let text = String::from_utf8_lossy(&value).into_owned();
            let command = String::from_utf8_lossy(&name.name).to_ascii_lowercase();
            let known = self.one(&command, &text, &name);
            if !known || self.versions == Versions::NONE {
                let why = match known {
                    true => "no version of TLS is left",
                    false => "weir has nothing of that name",
                };
                let command = String::from_utf8_lossy(&name.name);
                let text = format!("SSL_CONF_cmd(\"{command}\", \"{text}\") failed");
                return Err(name.at.error(format!("{text} (SSL: {why})")));
            }
        }
        Ok(())
    }

    fn one(&mut self, command: &str, value: &str, named: &NamedFile) -> bool {
        let file = || Some(NamedFile { name: value.as_bytes().to_vec(), at: named.at });
        match command {
            "certificate" => self.certificate = file(),
            "privatekey" => self.key = file(),
            "cipherstring" => return self.ciphers.set(value) != Chosen::Nothing,
            "ciphersuites" => return self.ciphers.set_tls13(value),
            "groups" | "curves" => match Curves::parse(value) {
                Ok((curves, _)) => self.curves = curves,
                Err(_) => return false,
            },
            "minprotocol" => match value {
                "TLSv1.3" => self.versions.tls12 = false,
                "TLSv1.2" | "TLSv1.1" | "TLSv1" | "None" => {}
                _ => return false,
            },
            "maxprotocol" => match value {
                "TLSv1.2" => self.versions.tls13 = false,
                "TLSv1.3" | "None" => {}
                _ => return false,
            },
            "verifymode" => return self.verifies && value == "Peer",
            "protocol" => return protocol(&mut self.versions, value),
            "options" => return value.split(',').all(|word| self.option(word.trim())),
            _ => return false,
        }
        true
    }

    fn option(&mut self, word: &str) -> bool {
        let (on, name) = signed(word);
        match name {
            "SessionTicket" => self.tickets = on,
            "ServerPreference" => self.prefer_server_ciphers = on,
            // rustls always behaves like this, or never can: the option changes nothing.
            "PrioritizeChaCha" | "KTLS" | "AntiReplay" => {}
            "UnsafeLegacyRenegotiation"
            | "Compression"
            | "DHSingle"
            | "ECDHSingle"
            | "NoRenegotiation"
            | "NoResumptionOnRenegotiation"
            | "EncryptThenMac"
            | "MiddleboxCompat"
            | "Bugs" => {}
            _ => return false,
        }
        true
    }
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
    true
}

fn signed(word: &str) -> (bool, &str) {
    match word.strip_prefix('-') {
        Some(name) => (false, name),
        None => (true, word.strip_prefix('+').unwrap_or(word)),
    }
}
