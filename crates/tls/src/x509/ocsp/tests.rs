//! Answers that OpenSSL has made (`openssl ocsp -index ... -rsigner ...`), in time and out of it.

use proptest::prelude::*;

use super::*;

macro_rules! data {
    ($name:literal) => {
        include_bytes!(concat!("../../../testdata/", $name)).as_slice()
    };
}

/// January 2027: a while after the answers were made, a hundred years before they end.
const NOW: i64 = 1_800_000_000;

fn der(pem: &[u8]) -> Vec<u8> {
    crate::certificates(pem).unwrap().remove(0).to_vec()
}

/// Verifies a response about `leaf.pem`, with `root.pem` as trusted root.
fn answer(response: &[u8], now: i64, known: bool) -> Result<OcspAnswer, OcspError> {
    let (leaf, inter) = (der(data!("leaf.pem")), der(data!("inter.pem")));
    let (leaf, inter) = (Certificate::parse(&leaf).unwrap(), Certificate::parse(&inter).unwrap());
    let anchors = [der(data!("root.pem"))];
    let trust = TrustStore { anchors: &anchors, lists: &[], depth: 5, now };
    let question = OcspRequest::new(&leaf, &inter);
    question.answer(response, &[inter], Signer::Trusted { trust, known }, now)
}

fn refused(why: &'static str) -> Result<OcspAnswer, OcspError> {
    Err(OcspError::Signer(why))
}

#[test]
fn requests_equal_those_of_openssl() {
    let (leaf, inter) = (der(data!("leaf.pem")), der(data!("inter.pem")));
    let (leaf, inter) = (Certificate::parse(&leaf).unwrap(), Certificate::parse(&inter).unwrap());
    assert_eq!(OcspRequest::new(&leaf, &inter).request(), data!("leaf.ocsp-request"));
}

#[test]
fn the_issuer_and_its_delegates_may_sign_responses() {
    for (response, status) in [
        (data!("good.ocsp"), CertificateStatus::Good),
        (data!("delegated.ocsp"), CertificateStatus::Good),
        (data!("revoked.ocsp"), CertificateStatus::Revoked),
        (data!("unknown.ocsp"), CertificateStatus::Unknown),
    ] {
        let answer = answer(response, NOW, false).unwrap();
        assert_eq!(answer.status, status);
        assert!(answer.until.is_some_and(|until| until > NOW));
    }
}

#[test]
fn other_signers_are_refused() {
    assert_eq!(answer(data!("by-root.ocsp"), NOW, false), refused("root ca not trusted"));
    assert_eq!(answer(data!("undelegated.ocsp"), NOW, false), refused("missing ocspsigning usage"));
    // Unless the signer is not checked.
    let (leaf, inter) = (der(data!("leaf.pem")), der(data!("inter.pem")));
    let (leaf, inter) = (Certificate::parse(&leaf).unwrap(), Certificate::parse(&inter).unwrap());
    let question = OcspRequest::new(&leaf, &inter);
    let answer = question.answer(data!("by-root.ocsp"), &[], Signer::Anyone, NOW);
    assert_eq!(answer.unwrap().status, CertificateStatus::Good);
    // An unknown signer that is not sent along.
    let answer = question.answer(data!("unknown.ocsp"), &[], Signer::Anyone, NOW);
    assert_eq!(answer, refused("signer certificate not found"));
}

#[test]
fn a_known_signer_needs_no_root() {
    let (leaf, inter) = (der(data!("leaf.pem")), der(data!("inter.pem")));
    let (leaf, inter) = (Certificate::parse(&leaf).unwrap(), Certificate::parse(&inter).unwrap());
    let question = OcspRequest::new(&leaf, &inter);
    let trust = TrustStore { anchors: &[], lists: &[], depth: 5, now: NOW };
    let ask = |known| {
        let signer = Signer::Trusted { trust, known };
        question.answer(data!("good.ocsp"), std::slice::from_ref(&inter), signer, NOW)
    };
    assert_eq!(ask(true).unwrap().status, CertificateStatus::Good);
    assert_eq!(ask(false), refused("unable to verify the first certificate"));
}

#[test]
fn an_answer_holds_in_its_time_and_for_its_certificate() {
    let late = answer(data!("good.ocsp"), NOW + 101 * 366 * 86_400, true);
    assert_eq!(late.unwrap_err().to_string(), "OCSP_check_validity() failed (SSL: status expired)");
    let early = answer(data!("good.ocsp"), 1_600_000_000, true);
    assert_eq!(
        early.unwrap_err().to_string(),
        "OCSP_check_validity() failed (SSL: status not yet valid)"
    );
    let (client, root) = (der(data!("client.pem")), der(data!("root.pem")));
    let (client, root) = (Certificate::parse(&client).unwrap(), Certificate::parse(&root).unwrap());
    let other = OcspRequest::new(&client, &root);
    let answer = other.answer(data!("good.ocsp"), &[], Signer::Anyone, NOW);
    assert_eq!(
        answer.unwrap_err().to_string(),
        "certificate status not found in the OCSP response"
    );
}

#[test]
fn a_response_without_an_answer_is_an_error() {
    let later = answer(&[0x30, 3, 0x0a, 1, 3], NOW, false);
    assert_eq!(later.unwrap_err().to_string(), "OCSP response not successful (3: trylater)");
}

proptest! {
    #[test]
    fn damage_never_changes_the_status(at in 0usize..700, bit in 0u8..8) {
        let mut response = data!("good.ocsp").to_vec();
        prop_assume!(at < response.len());
        let byte = &mut response[at];
        *byte ^= 1 << bit;
        // The damaged part may be a certificate that is not needed. But the status is never another
        // one.
        if let Ok(answer) = answer(&response, NOW, false) {
            prop_assert_eq!(answer.status, CertificateStatus::Good);
        }
    }

    #[test]
    fn any_bytes_are_decided(bytes: Vec<u8>) {
        prop_assert!(answer(&bytes, NOW, false).is_err());
    }
}
