//! What both ends agree on beside keys: signatures, compression of certificates, and options by
//! OpenSSL's names.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustls::client::Resumption;
use rustls::compress::{CertDecompressor, DecompressionFailed, ZLIB_DECOMPRESSOR};
use rustls::{CertificateCompressionAlgorithm, version};
use weir_testkit::{Server, run, s_client};

use super::clients::programs;
use super::{NAME, Tls, WEIR, builder, config, dir, showing, start};

#[test]
fn signatures_have_names() {
    let server = start(
        "",
        "ssl_verify_client optional; ssl_client_certificate root.pem; ssl_session_tickets off;
        return 200 $ssl_sigalg,$ssl_client_sigalg,$ssl_sigalgs,$ssl_ech_status;",
    );
    let said = Tls::connect(&server, &config(), NAME).text("/");
    let parts: Vec<_> = said.split(',').collect();
    assert_eq!(parts[..2], ["ecdsa_secp256r1_sha256", ""]);
    assert!(parts[2].contains(":ed25519:") && parts[3].is_empty(), "{said}");
    let said = Tls::connect(&server, &showing("client.pem", "client.key"), NAME).text("/");
    assert!(said.starts_with("ecdsa_secp256r1_sha256,ecdsa_secp256r1_sha256,"), "{said}");
}

/// Takes note of whether it was needed.
#[derive(Debug)]
struct Seen(AtomicBool);

static SEEN: Seen = Seen(AtomicBool::new(false));

impl CertDecompressor for Seen {
    fn decompress(&self, input: &[u8], output: &mut [u8]) -> Result<(), DecompressionFailed> {
        self.0.store(true, Ordering::Relaxed);
        ZLIB_DECOMPRESSOR.decompress(input, output)
    }

    fn algorithm(&self) -> CertificateCompressionAlgorithm {
        CertificateCompressionAlgorithm::Zlib
    }
}

#[test]
fn certificates_are_compressed_where_both_ends_want_it() {
    let mut wants = builder(&[&version::TLS13]).with_no_client_auth();
    wants.cert_decompressors = vec![&SEEN];
    wants.resumption = Resumption::disabled();
    for (on, compressed) in [("off", false), ("on", true)] {
        let inside = format!("ssl_certificate_compression {on}; return 200 ok;");
        let server = start("", &inside);
        for _ in 0..2 {
            SEEN.0.store(false, Ordering::Relaxed);
            let config = Arc::new(wants.clone());
            assert_eq!(Tls::connect(&server, &config, NAME).text("/"), "ok");
            assert_eq!(SEEN.0.load(Ordering::Relaxed), compressed, "{on}");
        }
        let config = Arc::new(builder(&[&version::TLS12]).with_no_client_auth());
        assert_eq!(Tls::connect(&server, &config, NAME).text("/"), "ok");
    }
}

#[test]
fn commands_change_what_servers_are_offered() {
    let proxied = |commands: &str| {
        let server = start(
            "",
            &format!(
                "location / {{ proxy_pass https://127.0.0.1:%%PORT1%%; {commands} }} }}
                server {{ listen 127.0.0.1:%%PORT1%% ssl;
                    return 200 $ssl_protocol,$ssl_ciphers,$ssl_curves;"
            ),
        );
        Tls::connect(&server, &config(), NAME).text("/")
    };
    assert_eq!(
        proxied(
            "proxy_ssl_conf_command MaxProtocol TLSv1.2; proxy_ssl_conf_command Groups P-384;
            proxy_ssl_conf_command CipherString ECDHE-ECDSA-AES128-GCM-SHA256;"
        ),
        "TLSv1.2,ECDHE-ECDSA-AES128-GCM-SHA256:TLS_EMPTY_RENEGOTIATION_INFO_SCSV,secp384r1"
    );
    let said = proxied(
        "proxy_ssl_conf_command Protocol -TLSv1.2;
        proxy_ssl_conf_command Ciphersuites TLS_CHACHA20_POLY1305_SHA256;",
    );
    assert!(said.starts_with("TLSv1.3,TLS_CHACHA20_POLY1305_SHA256,"), "{said}");
}

#[test]
fn what_only_openssl_has_is_refused_or_ignored() {
    let server = start("", "location / { proxy_pass https://127.0.0.1:%%PORT1%%; }");
    let inside = "location / { proxy_pass https://127.0.0.1:1; proxy_ssl_conf_command Wrong yes; }";
    server.configure(&super::conf("", inside));
    let said = server.command(&["-t"]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("[emerg] SSL_CONF_cmd(\"Wrong\", \"yes\") failed"), "{said}");
    let inside = "ssl_certificate leaf.pem; ssl_certificate_key store:file:key;";
    server.configure(&super::conf("", inside));
    let said = server.command(&["-t"]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("key \"store:file:key\": BIO_new_file() failed (engines and"), "{said}");
    server.configure(&super::conf("", "ssl_ech_file leaf.pem;"));
    let said = server.command(&["-t"]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("[warn] \"ssl_ech_file\" is not supported on this platform, ignored"));
    assert!(said.contains("successful"), "{said}");
}

/// As in nginx, a list that has nothing and a file that is missing stop no server that speaks no TLS.
#[test]
fn wrong_lists_and_missing_files_count_where_tls_is_spoken() {
    const PAIR: &str = "ssl_certificate leaf.pem; ssl_certificate_key leaf.key;";
    for program in programs() {
        let tested = |http: &str| {
            let dir = dir();
            let conf = format!(
                "error_log stderr; pid pid; events {{ }} http {{ access_log off; {http} }}"
            );
            dir.write("conf", conf);
            let file = dir.file("conf").display().to_string();
            let prefix = format!("{}/", dir.path().display());
            let said = run(&program, ["-t", "-e", "stderr", "-p", &prefix, "-c", &file]);
            (said.status.success(), String::from_utf8_lossy(&said.stderr).into_owned())
        };
        let plain = "ssl_ciphers foo; ssl_ecdh_curve foo;
            server { listen 127.0.0.1:1; ssl_client_certificate missing; ssl_verify_client on;
                location / { proxy_pass http://127.0.0.1:1; proxy_ssl_ciphers foo; } }";
        let (starts, said) = tested(plain);
        assert!(starts, "{program}: {said}");
        if program == WEIR {
            assert!(said.contains("[warn]") && said.contains("/missing\""), "{said}");
        }
        for wrong in [
            format!("ssl_ciphers foo; server {{ listen 127.0.0.1:1 ssl; {PAIR} }}"),
            format!("server {{ listen 127.0.0.1:1 ssl; {PAIR} ssl_ecdh_curve foo; }}"),
            "server { listen 127.0.0.1:1; proxy_ssl_ciphers foo;
                location / { proxy_pass https://127.0.0.1:1; } }"
                .to_owned(),
        ] {
            let (starts, said) = tested(&wrong);
            assert!(!starts && said.contains("(\"foo\") failed"), "{program}: {said}");
        }
    }
}

/// TLS 1.2 leaves curve and hash apart; a key here signs with the hash of its curve only.
#[test]
fn a_client_that_takes_no_signature_of_the_key_is_told_so() {
    let server = start("", "return 200;");
    let args = ["-quiet", "-tls1_2", "-sigalgs", "ECDSA+SHA384"];
    let Some(said) = s_client(server.dir().path(), server.port(), &args, "") else { return };
    assert!(said.contains("alert handshake failure"), "{said}");
}

/// Makes `rsa.pem` and `rsa.key`, which workers may read. False if there is no openssl.
fn make_rsa(dir: &Path) -> bool {
    let args = "req -x509 -newkey rsa:2048 -nodes -subj /CN=rsa -keyout rsa.key -out rsa.pem";
    let mut make = Command::new("openssl");
    let made = make.args(args.split(' ')).current_dir(dir).stderr(Stdio::null()).status();
    let made = made.is_ok_and(|status| status.success());
    if !made {
        println!("not run: no openssl");
        return false;
    }
    fs::set_permissions(dir.join("rsa.key"), Permissions::from_mode(0o644)).unwrap();
    true
}

/// OpenSSL has a place for each kind of key, so only keys of one kind must be in the order of their
/// certificates. The second server's names have a variable.
#[test]
fn keys_of_two_kinds_may_be_in_another_order_than_their_certificates() {
    for program in programs() {
        let dir = dir();
        if !make_rsa(dir.path()) {
            return;
        }
        let crossed = |dir: &str| {
            format!(
                "ssl_certificate {dir}/rsa.pem; ssl_certificate {dir}/chain.pem;
                ssl_certificate_key {dir}/leaf.key; ssl_certificate_key {dir}/rsa.key;"
            )
        };
        let server = Server::start_in(
            dir,
            &program,
            &format!(
                "events {{ }} http {{ access_log off; map '' $dir {{ default %%DIR%%; }}
                     server {{ listen 127.0.0.1:%%PORT%% ssl; {} return 200; }}
                     server {{ listen 127.0.0.1:%%PORT1%% ssl; {} return 200; }} }}",
                crossed("%%DIR%%"),
                crossed("$dir")
            ),
        );
        for port in [0, 1] {
            for cipher in ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"] {
                let (port, args) = (server.port_at(port), ["-tls1_2", "-cipher", cipher]);
                let Some(said) = s_client(server.dir().path(), port, &args, "Q\n") else { return };
                assert!(said.contains(&format!("Cipher is {cipher}")), "{program}: {said}");
            }
        }
        if program == WEIR {
            let alone = "ssl_certificate rsa.pem; ssl_certificate_key leaf.key;";
            server.configure(&super::conf("", alone));
            let tested = server.command(&["-t"]);
            let said = String::from_utf8_lossy(&tested.stderr).into_owned();
            assert!(!tested.status.success() && said.contains("key values mismatch"), "{said}");
        }
    }
}

/// In TLS 1.2 a cipher goes with one kind of key. Clients list signature schemes in another order.
#[test]
fn the_order_of_ciphers_chooses_among_certificates() {
    let (rsa, ecdsa) = ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256");
    for program in programs() {
        let dir = dir();
        if !make_rsa(dir.path()) {
            return;
        }
        let certificates =
            "ssl_certificate %%DIR%%/chain.pem; ssl_certificate_key %%DIR%%/leaf.key;
            ssl_certificate %%DIR%%/rsa.pem; ssl_certificate_key %%DIR%%/rsa.key;";
        let server = Server::start_in(
            dir,
            &program,
            &format!(
                "events {{ }} http {{ access_log off; {certificates} ssl_protocols TLSv1.2 TLSv1.3;
                     server {{ listen 127.0.0.1:%%PORT%% ssl; return 200; }}
                     server {{ listen 127.0.0.1:%%PORT1%% ssl; ssl_prefer_server_ciphers on;
                         ssl_ciphers {ecdsa}:{rsa}; return 200; }} }}"
            ),
        );
        let (rsa_first, ecdsa_first) = (format!("{rsa}:{ecdsa}"), format!("{ecdsa}:{rsa}"));
        let schemes = ["RSA-PSS+SHA256:ECDSA+SHA256", "ECDSA+SHA256:RSA-PSS+SHA256"];
        for (port, ciphers, chosen) in
            [(0, &rsa_first, rsa), (0, &ecdsa_first, ecdsa), (1, &rsa_first, ecdsa)]
        {
            for schemes in schemes {
                let args = ["-tls1_2", "-cipher", ciphers, "-sigalgs", schemes];
                let port = server.port_at(port);
                let Some(said) = s_client(server.dir().path(), port, &args, "Q\n") else { return };
                let expected = format!("Cipher is {chosen}");
                assert!(said.contains(&expected), "{program} {args:?}: {said}");
            }
        }
        // A client of TLS 1.2 refuses a certificate with a key on a curve that it does not have.
        for port in [0, 1] {
            let args = ["-tls1_2", "-cipher", &ecdsa_first, "-groups", "P-384"];
            let port = server.port_at(port);
            let Some(said) = s_client(server.dir().path(), port, &args, "Q\n") else { return };
            let expected = format!("Cipher is {rsa}");
            assert!(said.contains(&expected), "{program} {args:?}: {said}");
        }
    }
}
