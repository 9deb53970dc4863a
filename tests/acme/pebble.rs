//! Let's Encrypt's own test server, Pebble, as the authority: it refuses nonces, gives old authorizations again, and asks
//! for each proof three times.
//!
//! `.ci/run` builds it where it can. A test without it says so and passes.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use weir_testkit::{Client, Dir, Process, Server, ask_until, free_port};

use crate::dns::hook;
use crate::names::{KEY, NameServer};
use crate::{WEIR, secure};

/// The server.
struct Pebble {
    dir: Dir,
    _process: Process,
    port: u16,
    management: u16,
    /// Where it asks for proofs.
    http: u16,
    tls: u16,
}

/// Directories of programs beside those of `PATH`: where `.ci/run` installs some, and where Debian has others.
fn program(name: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target directory");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = [target.join("applications"), PathBuf::from("/usr/sbin")];
    let mut folders = std::env::split_paths(&path).chain(more);
    let found = folders.find_map(|folder| Some(folder.join(name)).filter(|path| path.is_file()));
    if found.is_none() {
        eprintln!("skipped: {name} is not installed (.ci/run says how)");
    }
    found
}

/// Starts a program; what it says is in the directory's file `log`.
fn start(command: &mut Command, dir: &Dir, log: &str) -> Process {
    let out = File::create(dir.file(log)).unwrap();
    let error = out.try_clone().unwrap();
    Process::start(command.stdout(out).stderr(error))
}

impl Pebble {
    /// With these lines of its configuration beside the usual ones, and with this name server. `None` where it is absent.
    fn start(more: &str, names: SocketAddr) -> Option<Pebble> {
        let program = program("pebble")?;
        let dir = Dir::new();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        dir.write("root.pem", params.self_signed(&key).unwrap().pem());
        let (issuer, own) = (Issuer::new(params, key), KeyPair::generate().unwrap());
        let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let leaf = dir.write("own.pem", leaf.signed_by(&own, &issuer).unwrap().pem());
        let own = dir.write("own.key", own.serialize_pem());
        let [port, management, http, tls] = [(); 4].map(|()| free_port());
        let (leaf, own) = (leaf.display(), own.display());
        let conf = dir.write(
            "pebble.json",
            format!(
                r#"{{"pebble": {{
                    "listenAddress": "127.0.0.1:{port}", "managementListenAddress": "127.0.0.1:{management}",
                    "certificate": "{leaf}", "privateKey": "{own}", "httpPort": {http}, "tlsPort": {tls},
                    "retryAfter": {{"authz": 1, "order": 1}}, "domainBlocklist": ["blocked.test"],
                    "profiles": {{
                        "default": {{"description": "", "validityPeriod": 7776000}},
                        "shortlived": {{"description": "", "validityPeriod": 518400}}
                    }} {more}
                }}}}"#
            ),
        );
        let mut command = Command::new(program);
        command.arg("-config").arg(conf).args(["-strict", "-dnsserver", &names.to_string()]);
        for (name, value) in [
            ("PEBBLE_VA_NOSLEEP", "1"),
            ("PEBBLE_WFE_NONCEREJECT", "40"),
            ("PEBBLE_AUTHZREUSE", "100"),
            ("PEBBLE_ALTERNATE_ROOTS", "2"),
            ("PEBBLE_CHAIN_LENGTH", "3"),
        ] {
            command.env(name, value);
        }
        let mut process = start(&mut command, &dir, "log");
        let ready = ask_until(|| {
            let all = [port, management].iter().all(|port| Client::try_connect(*port).is_ok());
            all || !process.is_running()
        });
        assert!(ready && process.is_running(), "Pebble does not start:\n{}", dir.read("log"));
        Some(Pebble { dir, _process: process, port, management, http, tls })
    }

    /// The lines of an `acme_issuer` block that lead to it.
    fn lines(&self) -> String {
        let root = self.dir.file("root.pem");
        format!(
            "uri https://127.0.0.1:{}/dir; ssl_trusted_certificate {}; accept_terms_of_service;",
            self.port,
            root.display()
        )
    }

    /// A configuration with these blocks in `http`; it is asked for proofs over HTTP.
    fn conf(&self, blocks: &str) -> String {
        let http = self.http;
        format!(
            "user root; events {{ }} http {{ {blocks} server {{ listen 127.0.0.1:{http}; return 404; }} }}"
        )
    }

    /// A server with these lines.
    fn site(&self, lines: &str) -> String {
        format!(
            "server {{ listen 127.0.0.1:{} ssl; {lines} return 200 $ssl_server_name; }}",
            self.tls
        )
    }

    /// One of its roots, in PEM.
    fn root(&self, number: usize) -> String {
        let line = format!("GET /roots/{number}");
        let (text, _) =
            secure(&self.dir.read("root.pem"), self.management, ("127.0.0.1", &line)).unwrap();
        text.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    /// The common name of a root.
    fn root_name(&self, number: usize) -> String {
        let pem = self.root(number);
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
        let root = pem.parse_x509().unwrap();
        let name = root.subject().iter_common_name().next().unwrap();
        name.as_str().unwrap().to_owned()
    }

    /// Waits until these names are served with a chain to this root; the chain of the first.
    fn wait(&self, server: &Server, names: &[&str], root: usize) -> Vec<Vec<u8>> {
        let root = self.root(root);
        let mut first = None;
        for name in names {
            let mut why = String::new();
            let came = ask_until(|| match secure(&root, self.tls, (name, "GET /")) {
                Ok((text, chain)) => {
                    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
                    first.get_or_insert(chain);
                    true
                }
                Err(error) => {
                    why = error.to_string();
                    false
                }
            });
            assert!(came, "{name}: {why}\n{}\n{}", self.dir.read("log"), server.log());
        }
        let failures = server.log().lines().any(|l| l.contains("[error]") && l.contains("acme"));
        assert!(!failures, "{}", server.log());
        first.unwrap()
    }
}

/// For how many days a certificate is valid.
fn days(der: &[u8]) -> i64 {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).unwrap();
    let validity = certificate.validity();
    (validity.not_after.timestamp() - validity.not_before.timestamp() + 60) / 86400
}

#[test]
fn every_kind_of_proof_key_and_chain_is_taken_by_pebble() {
    let names = NameServer::new("example.org");
    let Some(pebble) = Pebble::start("", names.address()) else { return };
    let dir = Dir::new();
    let (hook, records) = hook(&dir);
    names.reads(records);
    names.is_slow(2);
    let key = dir.write("tsig.key", KEY);
    let own = dir.write(
        "account.pem",
        KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048)
            .unwrap()
            .serialize_pem(),
    );
    let (lines, shown, third) = (pebble.lines(), names.address(), pebble.root_name(2));
    let (hook, key, own) = (hook.display(), key.display(), own.display());
    let asked = [
        ("plain", "", "a.example.org www.a.example.org 127.0.0.1 key=ecdsa:384"),
        (
            "tls",
            "challenge tls-alpn-01; account_key ecdsa:384;",
            "b.example.org www.b.example.org 127.0.0.1 key=rsa:2048",
        ),
        (
            "hook",
            &format!(
                "challenge dns-01; dns_hook {hook}; dns_wait 10s {shown}; account_key ecdsa:521;"
            ),
            "*.c.example.org c.example.org key=rsa:3072",
        ),
        (
            "update",
            &format!(
                "challenge dns-01; dns_update {shown} key={key}; dns_wait 10s {shown}; account_key rsa:2048;"
            ),
            "*.d.example.org d.example.org key=rsa:4096",
        ),
        (
            "file",
            &format!("account_key {own}; profile shortlived require;"),
            "e.example.org key=ecdsa:521",
        ),
        (
            "chain",
            &format!(
                "preferred_chain '{third}'; profile default; contact admin@example.org; common_name_in_csr on;"
            ),
            "f.example.org",
        ),
    ];
    let mut blocks = String::new();
    for (name, more, certificate) in &asked {
        let names = certificate.split(" key=").next().unwrap();
        blocks.push_str(&format!("acme_issuer {name} {{ {lines} {more} }}"));
        blocks.push_str(
            &pebble.site(&format!("server_name {names}; acme_certificate {name} {certificate};")),
        );
    }
    // These names are proved already when their turn comes: the order is ready at once.
    let again = "acme_certificate plain a.example.org www.a.example.org key=rsa:2048;";
    blocks.push_str(&pebble.site(&format!("server_name again.example.org; {again}")));
    let server = Server::start_in(dir, WEIR, &pebble.conf(&blocks));
    server.wait_log("got a certificate", asked.len() + 1);
    pebble.wait(&server, &["a.example.org", "www.a.example.org"], 0);
    pebble.wait(&server, &["b.example.org", "www.b.example.org"], 0);
    pebble.wait(&server, &["c.example.org", "x.c.example.org"], 0);
    pebble.wait(&server, &["d.example.org", "y.d.example.org"], 0);
    let chain = pebble.wait(&server, &["e.example.org"], 0);
    assert_eq!((days(&chain[0]), chain.len()), (6, 4), "its life in days, and its chain");
    let chain = pebble.wait(&server, &["f.example.org"], 2);
    assert_eq!(days(&chain[0]), 90);
    // Each is asked when it would renew its certificate (ARI).
    let asked =
        || pebble.dir.read("log").matches("GET /draft-ietf-acme-ari-03/renewalInfo/").count();
    assert!(ask_until(|| asked() >= 7), "{} questions", asked());
    // Nothing is left of the proofs.
    let clean = ask_until(|| names.texts("_acme-challenge.c.example.org").is_empty());
    assert!(clean, "the hook was not asked to remove what it published");
    assert_eq!(names.counts(), (0, 2), "two records by updates, and both removed");
}

#[test]
fn pebble_knows_its_customers_by_their_external_keys() {
    let names = NameServer::new("example.org");
    let key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let more = format!(
        r#", "externalAccountBindingRequired": true, "externalAccountMACKeys": {{"kid-1": "{key}"}}"#
    );
    let Some(pebble) = Pebble::start(&more, names.address()) else { return };
    let dir = Dir::new();
    let file = dir.write("eab.key", format!("{key}\n"));
    let (lines, file, wrong) = (pebble.lines(), file.display(), key.replace('z', "a"));
    let mut blocks = String::new();
    for (name, more) in [
        ("a", format!("external_account_key kid-1 data:{key};")),
        ("b", format!("external_account_key kid-1 {file}; account_key rsa:2048;")),
        ("c", format!("external_account_key kid-1 data:{wrong};")),
        ("d", String::new()),
    ] {
        blocks.push_str(&format!("acme_issuer {name} {{ {lines} {more} }}"));
        let own = format!("server_name {name}.example.org; acme_certificate {name};");
        blocks.push_str(&pebble.site(&own));
    }
    let server = Server::start_in(dir, WEIR, &pebble.conf(&blocks));
    server.wait_log("got a certificate", 2);
    server.wait_log("got a certificate for \"a.example.org\"", 1);
    server.wait_log("got a certificate for \"b.example.org\"", 1);
    server.wait_log("acme issuer \"c\": no certificate for \"c.example.org\": the account: ", 1);
    let without = "acme issuer \"d\": no certificate for \"d.example.org\": the account: \
                   ACME server policy requires newAccount requests must include a value for the 'externalAccountBinding' field";
    server.wait_log(without, 1);
}

#[test]
fn pebble_proves_a_wildcard_by_a_record_that_stays() {
    let names = NameServer::new("example.org");
    let Some(pebble) = Pebble::start("", names.address()) else { return };
    let (lines, shown) = (pebble.lines(), names.address());
    let conf = |more: &str, wanted: &str| {
        let own = pebble.site(&format!("server_name {wanted}; acme_certificate test;"));
        pebble.conf(&format!("acme_issuer test {{ {lines} {more} }} {own}"))
    };
    // The record names the account, which is there after a first certificate.
    let mut server = Server::start_in(Dir::new(), WEIR, &conf("", "a.example.org"));
    server.wait_log("got a certificate", 1);
    server.stop();
    let persistent = conf(
        &format!("challenge dns-persist-01; dns_wait 10s {shown};"),
        "*.example.org www.b.example.org",
    );
    let mut server = Server::start_in(Dir::of_before(server.dir().path()), WEIR, &persistent);
    // What the log asks for is what is published.
    server.wait_log("DNS lacks the record ", 1);
    let log = server.log();
    let wanted = log.split("DNS lacks the record ").nth(1).unwrap();
    let wanted = wanted.split("; next attempt").next().unwrap();
    for record in wanted.split(" and ") {
        let (name, value) = record.split_once(". TXT \"").unwrap();
        names.publish(name, value.trim_end_matches('"'));
    }
    assert_eq!(names.counts().0, 2, "{wanted}");
    // The operator starts anew. The wait after a failure is a minute all the same.
    server.stop();
    let dir = Dir::of_before(server.dir().path());
    for entry in std::fs::read_dir(dir.file("acme_test").join("attempts")).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    std::fs::write(dir.file("error.log"), "").unwrap();
    let server = Server::start_in(dir, WEIR, &persistent);
    pebble.wait(&server, &["x.example.org", "www.b.example.org"], 0);
}

#[test]
fn a_name_that_pebble_refuses_is_told_with_its_reason_and_asked_for_once() {
    let names = NameServer::new("example.org");
    let Some(pebble) = Pebble::start("", names.address()) else { return };
    let lines = pebble.lines();
    let own = pebble.site("server_name blocked.test; acme_certificate test;");
    // The other one's record is never published.
    let other = pebble.site("server_name silent.example.org; acme_certificate other;");
    let hook = "challenge dns-01; dns_hook /bin/true; dns_wait off;";
    let blocks = format!(
        "acme_issuer test {{ {lines} }} acme_issuer other {{ {lines} {hook} }} {own} {other}"
    );
    let server = Server::start_in(Dir::new(), WEIR, &pebble.conf(&blocks));
    let refused = "no certificate for \"blocked.test\": the order: Order included an identifier \
                   for which issuance is forbidden by policy";
    server.wait_log(refused, 1);
    server.wait_log("no certificate for \"silent.example.org\": \"silent.example.org\": ", 1);
    let asked = |what: &str| pebble.dir.read("log").matches(what).count();
    assert_eq!(server.logged("next attempt in "), 2, "{}", server.log());
    assert_eq!(asked("There are now 1 orders in the db"), 1, "{}", pebble.dir.read("log"));
    assert_eq!(asked("There are now 2 orders in the db"), 0);
}

/// The name server of Debian's package `bind9` checks the signatures and removes what it is asked to.
#[test]
fn bind_takes_updates_and_shows_them_to_pebble() {
    let Some(program) = program("named") else { return };
    let dir = Dir::new();
    let port = free_port();
    let key = dir.write("tsig.key", run("tsig-keygen", &["-a", "hmac-sha512", "acme-key"]));
    let shown = dir.path().display();
    dir.write(
        "zone",
        "$TTL 1\n@ SOA ns hostmaster 1 60 60 600 1\n@ NS ns\nns A 127.0.0.1\n* A 127.0.0.1\n\
         _acme-challenge.www.b CNAME proofs.other\n",
    );
    let conf = dir.write(
        "named.conf",
        format!(
            "include \"{0}\";
             options {{
                directory \"{shown}\"; pid-file none; session-keyfile \"{shown}/session.key\"; recursion no;
                listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }}; dnssec-validation no;
             }};
             controls {{ }};
             zone \"example.org\" {{ type primary; file \"zone\"; update-policy {{ grant acme-key zonesub TXT; }}; }};",
            key.display()
        ),
    );
    let mut named = start(Command::new(program).args(["-g", "-c"]).arg(conf), &dir, "named.log");
    let runs = ask_until(|| dir.read("named.log").contains("running") || !named.is_running());
    assert!(runs && named.is_running(), "{}", dir.read("named.log"));
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let Some(pebble) = Pebble::start("", address) else { return };
    let issuer = format!(
        "acme_issuer test {{ {} challenge dns-01; dns_update {address} key={}; dns_wait 10s {address}; dns_resolver {address}; }}",
        pebble.lines(),
        key.display()
    );
    let own = pebble
        .site("server_name example.org *.example.org www.b.example.org; acme_certificate test;");
    let conf = pebble.conf(&format!("{issuer} {own}"));
    let server = Server::start_in(Dir::new(), WEIR, &conf);
    pebble.wait(&server, &["example.org", "x.example.org", "www.b.example.org"], 0);
    server.wait_log("got a certificate", 1);
    let log = dir.read("named.log");
    let count = |what: &str| log.matches(what).count();
    assert_eq!(count("adding an RR at '_acme-challenge.example.org' TXT"), 2, "{log}");
    assert_eq!(count("deleting an RR at _acme-challenge.example.org TXT"), 2, "{log}");
    // An alias is followed.
    assert_eq!(count("adding an RR at 'proofs.other.example.org' TXT"), 1, "{log}");
    assert_eq!(count("deleting an RR at proofs.other.example.org TXT"), 1, "{log}");
}

fn run(program: &str, args: &[&str]) -> String {
    let program = self::program(program).expect("it comes with named");
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}
