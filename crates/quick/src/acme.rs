//! Certificates by ACME, for public host names.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::QuickError;
use crate::certificate;
use crate::place::{self, ListenAt, quoted};

/// The address to which browsers connect.
pub const HTTPS: &str = ":443";
/// The address to which authorities connect.
const HTTP: &str = ":80";

const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// Top-level names for which no authority issues certificates: RFC 6761, RFC 6762, RFC 8375 and
/// similar ones.
const PRIVATE: [&str; 11] = [
    "localhost",
    "local",
    "test",
    "example",
    "invalid",
    "internal",
    "arpa",
    "lan",
    "home",
    "corp",
    "onion",
];

/// How the certificate for `--tls` is obtained.
#[derive(Debug, Args)]
pub struct AcmeOptions {
    /// Another ACME server than Let's Encrypt, for any name. With either you agree to its terms of service
    #[arg(long, value_name = "URL", requires = "tls")]
    acme_uri: Option<String>,
    /// Certificates in PEM that vouch for that server, instead of the machine's
    #[arg(long, value_name = "FILE", requires = "acme_uri")]
    acme_ca: Option<PathBuf>,
    /// Where the ACME server asks for a proof, and other clients are sent to https [default: :80]
    #[arg(long, value_name = "ADDRESS", requires = "tls")]
    http: Option<String>,
    /// A self-signed certificate, whatever the name is
    #[arg(long, requires = "tls", conflicts_with_all = ["acme_uri", "http"])]
    self_signed: bool,
}

/// A certificate to be ordered by ACME.
pub struct Acme {
    uri: String,
    authority: Option<PathBuf>,
    http: ListenAt,
}

impl AcmeOptions {
    /// The certificate to order for this name. `None` if it is to be self-signed.
    pub fn of(&self, name: Option<&str>, show: bool) -> Result<Option<Acme>, QuickError> {
        let wanted =
            |name: &&str| !self.self_signed && (self.acme_uri.is_some() || is_public(name));
        let Some(name) = name.filter(wanted) else { return Ok(None) };
        certificate::check(name)?;
        let uri = self.acme_uri.as_deref().unwrap_or(LETS_ENCRYPT);
        let is_word = uri.bytes().all(|b| b.is_ascii_graphic() && !b"\"'\\;{}$#".contains(&b));
        if !uri.starts_with("https://") || !is_word {
            return Err(QuickError::Word(uri.to_owned(), "is no ACME server: https://HOST/PATH"));
        }
        let http = place::address(self.http.as_deref().or(Some(HTTP)), 0, &[], show)?;
        Ok(Some(Acme { uri: uri.to_owned(), authority: self.acme_ca.clone(), http }))
    }
}

impl Acme {
    /// The address of the server for challenges.
    pub fn http(&self) -> ListenAt {
        self.http
    }

    /// The URL of the ACME server.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// The `acme_issuer` block.
    pub fn issuer(&self, state: &Path) -> Result<String, QuickError> {
        let (uri, path) = (&self.uri, quoted(&state.join("acme"))?);
        let authority = match &self.authority {
            None => String::new(),
            Some(file) => {
                let file = std::path::absolute(file);
                let file = file.map_err(|e| QuickError::File(PathBuf::from("--acme-ca"), e))?;
                format!("        ssl_trusted_certificate {};\n", quoted(&file)?)
            }
        };
        Ok(format!(
            "    acme_issuer authority {{
        uri {uri};
        accept_terms_of_service;
        state_path {path};
{authority}    }}
"
        ))
    }

    /// The server for challenges.
    pub fn server(&self) -> String {
        format!(
            "
    # The authority asks here for a proof; all others are sent to https.
    server {{
{}        return 301 https://$host$request_uri;
    }}
",
            self.http.lines("")
        )
    }
}

/// Whether an authority can issue a certificate for the name.
fn is_public(name: &str) -> bool {
    let Some((_, last)) = name.rsplit_once('.') else { return false };
    let is_private = PRIVATE.iter().any(|private| last.eq_ignore_ascii_case(private));
    name.parse::<IpAddr>().is_err() && !is_private && !last.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_names_are_recognized() {
        for name in ["example.org", "www.example.co.uk", "xn--e1afmkfd.xn--p1ai"] {
            assert!(is_public(name), "{name}");
        }
        for name in [
            "localhost",
            "app.localhost",
            "nas.local",
            "shop.Example",
            "127.0.0.1",
            "::1",
            "intern",
            "a.",
        ] {
            assert!(!is_public(name), "{name}");
        }
    }
}
