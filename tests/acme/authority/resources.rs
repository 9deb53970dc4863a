//! The resources of the authority: its directory, accounts, orders, authorizations and certificates.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rcgen::CertificateSigningRequestParams;
use serde_json::{Value, json};
use weir_proto::base64::{self, Alphabet};

use super::{Answer, Authorization, Order, Shared};

impl Shared {
    pub(super) fn directory(&self) -> Answer {
        ok(json!({
            "newNonce": self.url("nonce"),
            "newAccount": self.url("account"),
            "newOrder": self.url("order"),
            "renewalInfo": self.url("renewal"),
        }))
    }

    pub(super) fn renewal(&self) -> Answer {
        let window = json!({"start": "2000-01-01T00:00:00Z", "end": "2000-01-02T00:00:00Z"});
        let mut answer = ok(json!({"suggestedWindow": window}));
        answer.headers.push(("Retry-After".into(), "21600".into()));
        answer
    }

    pub(super) fn new_account(&self, key: &Value, payload: &Value) -> Answer {
        if payload["termsOfServiceAgreed"] != true {
            return problem(
                403,
                "userActionRequired",
                "the terms at https://terms.example are to be accepted",
            );
        }
        let mut world = self.world();
        let known = world.accounts.iter().position(|known| known == key);
        let number = known.unwrap_or_else(|| {
            world.accounts.push(key.clone());
            world.accounts.len() - 1
        });
        let mut answer = ok(json!({"status": "valid"}));
        answer.status = if known.is_some() { 200 } else { 201 };
        answer.headers.push(("Location".into(), self.url(&format!("account/{number}"))));
        answer
    }

    pub(super) fn new_order(&self, payload: &Value) -> Answer {
        let names = payload["identifiers"].as_array().unwrap().clone();
        let mut world = self.world();
        let number = world.orders.len();
        let authorizations = (0..names.len()).map(|at| Authorization {
            status: "pending",
            token: format!("token-{number}-{at}"),
            error: None,
        });
        let order = Order {
            status: "pending",
            authorizations: authorizations.collect(),
            names,
            chain: None,
            error: None,
        };
        world.orders.push(order);
        drop(world);
        let mut answer = self.show(number);
        answer.status = 201;
        answer.headers.push(("Location".into(), self.url(&format!("order/{number}"))));
        answer
    }

    pub(super) fn show(&self, number: usize) -> Answer {
        let mut world = self.world();
        let Some(order) = world.orders.get_mut(number) else {
            return problem(404, "malformed", "no such order");
        };
        let authorizations =
            (0..order.names.len()).map(|at| self.url(&format!("authz/{number}/{at}")));
        let mut shown = json!({
            "status": order.status,
            "identifiers": order.names,
            "authorizations": authorizations.collect::<Vec<_>>(),
            "finalize": self.url(&format!("finalize/{number}")),
        });
        if order.status == "valid" {
            shown["certificate"] = self.url(&format!("cert/{number}")).into();
        }
        if let Some(error) = &order.error {
            shown["error"] = error.clone();
        }
        if order.status == "processing" {
            order.status = "valid";
        }
        ok(shown)
    }

    pub(super) fn authorization(&self, number: usize, at: usize) -> Answer {
        let world = self.world();
        let order = &world.orders[number];
        let own = &order.authorizations[at];
        let mut challenge = json!({
            "type": "http-01",
            "status": own.status,
            "url": self.url(&format!("challenge/{number}/{at}")),
            "token": own.token,
        });
        if let Some(error) = &own.error {
            challenge["error"] = error.clone();
        }
        let of = |kind: &str, path: &str| {
            let mut other = challenge.clone();
            other["type"] = kind.into();
            other["url"] = self.url(&format!("challenge/{number}/{at}/{path}")).into();
            other
        };
        let (dns, tls) = (of("dns-01", "dns"), of("tls-alpn-01", "tls"));
        let mut persist = of("dns-persist-01", "persist");
        persist.as_object_mut().unwrap().remove("token");
        persist["issuer-domain-names"] = json!(["authority.test"]);
        let name = order.names[at]["value"].as_str().unwrap();
        let mut identifier = order.names[at].clone();
        let wildcard = name.strip_prefix("*.");
        if let Some(rest) = wildcard {
            identifier["value"] = rest.into();
        }
        ok(json!({
            "status": own.status,
            "identifier": identifier,
            "wildcard": wildcard.is_some(),
            "challenges": match wildcard {
                Some(_) => vec![dns, persist],
                None => vec![dns, challenge, persist, tls],
            },
        }))
    }

    pub(super) fn finalize(&self, number: usize, payload: &Value) -> Answer {
        let csr = payload["csr"].as_str().unwrap();
        let csr = base64::decode(Alphabet::Url, csr.as_bytes()).unwrap();
        let mut csr = CertificateSigningRequestParams::from_der(&csr.into()).unwrap();
        let now = std::time::SystemTime::now();
        csr.params.not_before = (now - Duration::from_secs(60)).into();
        csr.params.not_after = (now + Duration::from_secs(90 * 86400)).into();
        csr.params.use_authority_key_identifier_extension = true;
        let mut world = self.world();
        let order = &mut world.orders[number];
        if order.status != "ready" {
            return problem(403, "orderNotReady", order.status);
        }
        let wanted: BTreeMap<String, ()> = order
            .names
            .iter()
            .map(|name| (name["value"].as_str().unwrap().to_owned(), ()))
            .collect();
        assert_eq!(csr.params.subject_alt_names.len(), wanted.len(), "the names of the request");
        let leaf = csr.signed_by(&self.issuer).unwrap();
        order.chain = Some(leaf.pem() + &self.root);
        order.status = if self.is_slow.load(Ordering::SeqCst) { "processing" } else { "valid" };
        drop(world);
        self.show(number)
    }

    pub(super) fn certificate(&self, number: usize) -> Answer {
        let world = self.world();
        let body = world.orders[number].chain.clone().unwrap();
        Answer { status: 200, headers: vec![], kind: "application/pem-certificate-chain", body }
    }
}

pub(super) fn ok(body: Value) -> Answer {
    Answer { status: 200, headers: vec![], kind: "application/json", body: body.to_string() }
}

pub(super) fn problem(status: u16, kind: &str, detail: &str) -> Answer {
    let body = json!({"type": format!("urn:ietf:params:acme:error:{kind}"), "detail": detail, "status": status});
    Answer { status, headers: vec![], kind: "application/problem+json", body: body.to_string() }
}
