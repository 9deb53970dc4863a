//! Certificates with several faults at once, drawn at random: purpose, age, revocation, authority,
//! depth, in each mode, version of TLS and of HTTP. weir lets a client in if `openssl verify` finds
//! no fault, and says of the others what nginx says.
//!
//! `WEIR_SEED` replays a run, `WEIR_CASES` makes it longer.

use std::process::Command;

use rustls::version::{TLS12, TLS13};
use weir_testkit::{Dice, Dir, Server, number, seed};

use super::WEIR;
use super::clients::{CHAINS, MAKE, MODES, ask, ask_http2, client_of, made_by, programs};

/// Besides what the other tests have: certificates that their authority has taken back, and the lists that say so.
const MORE: &str = r#"
printf '[ca]\ndefault_ca=d\n[d]\ndatabase=taken\ndefault_md=sha256\ndefault_crl_days=30\n' > ca.conf
printf 'R\t491231235959Z\t250101000000Z\t77\tunknown\t/CN=somebody\n' > taken
for purpose in client server; do for age in 100 -1; do for by in root inter low other ointer; do
  serial=118; cp k k-gone$purpose$age$by; make gone$purpose$age$by somebody "$by" $purpose $age
done; done; done
for ca in root inter low other ointer; do
  openssl ca -gencrl -config ca.conf -keyfile k-ca-$ca -cert ca-$ca -out crl-$ca
done
cat crl-* > crls
# Of the root's list, what was revoked is removed again. Another authority has revoked its intermediate one.
sed -i 's/00Z\t77/00Z,removeFromCRL\t77/' taken
openssl ca -gencrl -config ca.conf -keyfile k-ca-root -cert ca-root -out later-root
printf 'R\t491231235959Z\t250101000000Z\t05\tunknown\t/CN=ointer\n' > taken
openssl ca -gencrl -config ca.conf -keyfile k-ca-other -cert ca-other -out later-other
cat later-* crl-inter crl-low crl-ointer > later
"#;

/// How deep a chain may be, and which lists of what was taken back are asked.
const STRICTNESS: [(u8, &str); 3] = [(1, ""), (2, "crls"), (3, "later")];

fn conf() -> String {
    let mut servers = String::new();
    for (i, mode) in MODES.iter().enumerate() {
        for (j, (depth, lists)) in STRICTNESS.iter().enumerate() {
            let port = if i + j == 0 { String::new() } else { (3 * i + j).to_string() };
            let lists =
                if lists.is_empty() { String::new() } else { format!("ssl_crl %%DIR%%/{lists};") };
            servers += &format!(
                "server {{ listen 127.0.0.1:%%PORT{port}%% ssl; http2 on; ssl_verify_client {mode};
                    ssl_verify_depth {depth}; {lists} error_page 495 496 = /refused;
                    location = /refused {{ return 400 \"$ssl_client_verify\"; }}
                    location / {{ return 200 \"$ssl_client_verify\"; }} }}"
            );
        }
    }
    format!(
        "events {{ }} http {{ access_log off; ssl_certificate %%DIR%%/chain.pem;
            ssl_certificate_key %%DIR%%/leaf.key; ssl_protocols TLSv1.2 TLSv1.3;
            ssl_client_certificate %%DIR%%/ca-root; {servers} }}"
    )
}

/// One client, and the server that it meets.
#[derive(Debug, Clone, Copy)]
struct Case {
    gone: &'static str,
    purpose: &'static str,
    age: i32,
    by: &'static str,
    along: &'static [&'static str],
    mode: usize,
    strictness: usize,
    version: &'static rustls::SupportedProtocolVersion,
    http2: bool,
}

impl Case {
    fn draw(dice: &mut Dice) -> Case {
        let (by, along, ..) = dice.pick(CHAINS);
        Case {
            // A certificate that is its own authority has revoked nothing.
            gone: if by.is_empty() { "" } else { dice.pick(&["", "", "gone"]) },
            purpose: dice.pick(&["client", "client", "server"]),
            age: dice.pick(&[100, 100, -1]),
            by,
            along,
            mode: dice.below(MODES.len()),
            strictness: dice.below(STRICTNESS.len()),
            version: dice.pick(&[&TLS12, &TLS13]),
            http2: dice.one_in(3),
        }
    }

    fn files(&self) -> Vec<String> {
        let leaf = format!("{}{}{}{}", self.gone, self.purpose, self.age, self.by);
        [leaf].into_iter().chain(self.along.iter().map(|&name| name.to_owned())).collect()
    }

    /// Status, and over HTTP/1 what is said.
    fn outcome(&self, server: &Server) -> (u16, String) {
        let files = self.files();
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let port = server.port_at(3 * self.mode + self.strictness);
        let config = |protocol| client_of(server, &files, "k", protocol, &[self.version]);
        let name = "www.example.org";
        if self.http2 {
            return (ask_http2(port, &config("h2"), name, name), String::new());
        }
        let (status, text, _) = ask(port, &config("http/1.1"), name, name);
        (status, text)
    }

    /// Whether `openssl verify` finds nothing against it.
    fn is_good(&self, server: &Server) -> bool {
        let (depth, lists) = STRICTNESS[self.strictness];
        let files = self.files();
        let mut command = Command::new("openssl");
        command.args(["verify", "-purpose", "sslclient", "-CAfile", "ca-root"]);
        command.args(["-verify_depth", &depth.to_string()]);
        if !lists.is_empty() {
            command.args(["-crl_check_all", "-CRLfile", lists]);
        }
        for file in &files[1..] {
            command.args(["-untrusted", file]);
        }
        let said = command.arg(&files[0]).current_dir(server.dir().path()).output().unwrap();
        said.status.success()
    }
}

/// A directory with the same files.
fn copy(from: &Dir) -> Dir {
    let dir = Dir::new();
    for entry in std::fs::read_dir(from.path()).unwrap().flatten().filter(|e| e.path().is_file()) {
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

#[test]
fn several_faults_of_a_certificate_are_one_refusal() {
    let mut dice = Dice::salted(seed(), "faults");
    let cases: Vec<Case> =
        (0..number("WEIR_CASES").unwrap_or(250)).map(|_| Case::draw(&mut dice)).collect();
    let Some(made) = made_by(&format!("{MAKE}{MORE}")) else { return };
    let start = |program: String| Server::start_in(copy(&made), &program, &conf());
    let servers: Vec<Server> = programs().into_iter().map(start).collect();
    let ours = &servers[0];
    for case in &cases {
        let (status, said) = case.outcome(ours);
        let good = case.is_good(ours);
        if !case.http2 {
            assert_eq!(said == "SUCCESS", good, "{case:?}: {said}");
        }
        let no_authority = MODES[case.mode] == "optional_no_ca";
        assert!(status == 200 || !good, "{case:?}: {status} {said}");
        assert!(status != 200 || good || no_authority, "{case:?}: {status} {said}");
        if let Some(theirs) = servers.get(1) {
            assert_eq!((status, said), case.outcome(theirs), "{case:?}, weir and nginx");
        }
    }
    println!("{} cases by {WEIR}, beside {} other servers", cases.len(), servers.len() - 1);
}
