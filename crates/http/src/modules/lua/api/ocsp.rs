//! The module `ngx.ocsp`: OCSP requests and responses.

use mlua::BString;
use weir_tls::x509::Certificate;
use weir_tls::x509::ocsp::CertificateStatus;
use weir_tls::{Chain, Inquiry, SignerTrust};

use super::natives::Natives;
use super::ssl::{answer, handshake};

/// The TLS extension by which a client asks for a stapled response.
const STATUS_REQUEST: u16 = 5;

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add("ocsp_responder", |_, chain: BString| {
        answer(Pair::read(&chain).and_then(|pair| {
            let url = weir_tls::responder(&pair.leaf).map(|url| BString::from(url.to_vec()));
            if url.is_some() {
                pair.check_issuer()?;
            }
            Ok(url)
        }))
    })?;
    natives.add("ocsp_request", |_, chain: BString| {
        let inquiry = Pair::read(&chain).and_then(|pair| pair.inquiry());
        answer(inquiry.map(|inquiry| BString::from(inquiry.request())))
    })?;
    natives.add("ocsp_validate", |_, (response, chain): (BString, BString)| {
        match validate(&response, &chain) {
            Ok(until) => (true, until.map(|until| until as f64), None),
            Err(why) => (false, None, Some(why)),
        }
    })?;
    // False if the client did not ask for a response.
    natives.add_refusing("ocsp_set", |_, response: BString| {
        handshake(|handshake| {
            let is_asked = handshake.hello.extension(STATUS_REQUEST).is_some();
            if is_asked {
                handshake.decided.staple = Some(response.to_vec());
            }
            is_asked
        })
    })
}

/// A certificate and the next one of its chain.
struct Pair {
    leaf: Vec<u8>,
    next: Option<Vec<u8>>,
}

impl Pair {
    fn read(chain: &[u8]) -> Result<Pair, &'static str> {
        let chain = Chain::from_der(chain).ok_or("d2i_X509_bio() failed")?;
        let mut each = chain.each().map(<[u8]>::to_vec);
        let leaf = each.next().ok_or("d2i_X509_bio() failed")?;
        Ok(Pair { leaf, next: each.next() })
    }

    /// Whether the second certificate has the name of the first one's issuer.
    fn check_issuer(&self) -> Result<(), &'static str> {
        let next = self.next.as_deref().ok_or("no issuer certificate in chain")?;
        let both = Certificate::parse(&self.leaf).zip(Certificate::parse(next));
        let fits = both.is_some_and(|(leaf, issuer)| issuer.may_have_issued(&leaf));
        if fits { Ok(()) } else { Err("issuer certificate not next to leaf") }
    }

    /// The OCSP request. Any signer is accepted, since clients check that.
    fn inquiry(&self) -> Result<Inquiry, &'static str> {
        let next = self.next.as_deref().ok_or("no issuer certificate in chain")?;
        let inquiry = Inquiry::new(&self.leaf, next, vec![next.to_vec()], SignerTrust::Anyone);
        inquiry.ok_or("OCSP_cert_to_id() failed")
    }
}

/// The end of validity of a response, if it says that the certificate is good.
fn validate(response: &[u8], chain: &[u8]) -> Result<Option<i64>, String> {
    let inquiry = Pair::read(chain)?.inquiry()?;
    let found = inquiry.answer(response).map_err(|error| {
        let text = error.to_string();
        text.split(" (SSL: ").next().map(str::to_owned).unwrap_or(text)
    })?;
    match found.status {
        CertificateStatus::Good => Ok(found.until),
        status => Err(format!("certificate status \"{}\" in the OCSP response", status.name())),
    }
}
