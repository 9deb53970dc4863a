//! Account keys that the ACME library cannot use: it only signs with ECDSA P-256. The library signs its requests with a
//! throw-away key, and this module replaces that signature by one of the account's key.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING,
    ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair as _,
    RSA_PKCS1_SHA256, RsaKeyPair,
};
use serde_json::{Value, json};
use weir_proto::base64::{self, Alphabet};

/// Signs as one account.
pub struct Signer {
    key: Key,
    /// The public key as a JSON Web Key (RFC 7517).
    public: Value,
    /// `external_account_key`, which signs the account's key.
    external: Option<hmac::Key>,
    thumbprint: String,
}

enum Key {
    Ecdsa(EcdsaKeyPair, &'static str),
    Rsa(RsaKeyPair),
}

/// The curves, with the names of their JWS algorithm and curve.
const CURVES: [(&EcdsaSigningAlgorithm, &str, &str); 3] = [
    (&ECDSA_P256_SHA256_FIXED_SIGNING, "ES256", "P-256"),
    (&ECDSA_P384_SHA384_FIXED_SIGNING, "ES384", "P-384"),
    (&ECDSA_P521_SHA512_FIXED_SIGNING, "ES512", "P-521"),
];

impl Signer {
    /// A signer with this key in PKCS#8. None if ACME servers take no such keys.
    pub fn new(pkcs8: &[u8], external: Option<&[u8]>) -> Option<Signer> {
        let external = external.map(|key| hmac::Key::new(hmac::HMAC_SHA256, key));
        let (key, public) =
            CURVES.iter().find_map(|curve| ecdsa(pkcs8, *curve)).or_else(|| rsa(pkcs8))?;
        // `serde_json` sorts the members of an object by name, as RFC 7638 requires.
        let thumbprint = encode(digest(&SHA256, public.to_string().as_bytes()).as_ref());
        Some(Signer { key, public, external, thumbprint })
    }

    /// The key authorization of a challenge's token (RFC 8555, section 8.1).
    pub fn key_authorization(&self, token: &str) -> String {
        format!("{token}.{}", self.thumbprint)
    }

    /// Signs a request's body again with this key. None if the body is no signed request.
    pub fn sign_again(&self, body: &[u8]) -> Option<Vec<u8>> {
        let mut sent: Value = serde_json::from_slice(body).ok()?;
        let mut header: Value = serde_json::from_slice(&decode(&sent["protected"])?).ok()?;
        header["alg"] = match &self.key {
            Key::Ecdsa(_, name) => (*name).into(),
            Key::Rsa(_) => "RS256".into(),
        };
        if header.get("jwk").is_some() {
            header["jwk"] = self.public.clone();
        }
        sent["protected"] = encode(header.to_string().as_bytes()).into();
        let payload = decode(&sent["payload"]).unwrap_or_default();
        if let Ok(mut payload) = serde_json::from_slice::<Value>(&payload)
            && let Some(external) = &self.external
            && let Some(binding) =
                payload.get_mut("externalAccountBinding").filter(|b| b.is_object())
        {
            binding["payload"] = encode(self.public.to_string().as_bytes()).into();
            binding["signature"] = encode(hmac::sign(external, &signed(binding)?).as_ref()).into();
            sent["payload"] = encode(payload.to_string().as_bytes()).into();
        }
        sent["signature"] = encode(&self.sign(&signed(&sent)?)?).into();
        serde_json::to_vec(&sent).ok()
    }

    fn sign(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match &self.key {
            Key::Ecdsa(pair, _) => Some(pair.sign(&random, bytes).ok()?.as_ref().to_vec()),
            Key::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, bytes, &mut signature).ok()?;
                Some(signature)
            }
        }
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("public", &self.public).finish_non_exhaustive()
    }
}

fn ecdsa(
    pkcs8: &[u8],
    (algorithm, name, curve): (&'static EcdsaSigningAlgorithm, &'static str, &str),
) -> Option<(Key, Value)> {
    let pair = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8).ok()?;
    // The first byte marks an uncompressed point.
    let point = pair.public_key().as_ref().get(1..)?;
    let (x, y) = point.split_at(point.len() / 2);
    let public = json!({"crv": curve, "kty": "EC", "x": encode(x), "y": encode(y)});
    Some((Key::Ecdsa(pair, name), public))
}

fn rsa(pkcs8: &[u8]) -> Option<(Key, Value)> {
    let pair = RsaKeyPair::from_pkcs8(pkcs8).ok()?;
    let public = pair.public_key();
    let exponent = public.exponent().big_endian_without_leading_zero().to_vec();
    let modulus = public.modulus().big_endian_without_leading_zero().to_vec();
    let public = json!({"e": encode(&exponent), "kty": "RSA", "n": encode(&modulus)});
    Some((Key::Rsa(pair), public))
}

/// The input of a JWS signature (RFC 7515, section 5.1).
fn signed(object: &Value) -> Option<Vec<u8>> {
    let part = |name: &str| object[name].as_str();
    Some(format!("{}.{}", part("protected")?, part("payload")?).into_bytes())
}

fn encode(bytes: &[u8]) -> String {
    let mut text = Vec::new();
    base64::encode(Alphabet::Url, bytes, &mut text);
    String::from_utf8(text).unwrap_or_default()
}

fn decode(value: &Value) -> Option<Vec<u8>> {
    base64::decode(Alphabet::Url, value.as_str()?.as_bytes())
}
