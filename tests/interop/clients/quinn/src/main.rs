//! A client of quinn and h3 for tests/interop/run: see there for what each case asks.

use std::error::Error;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Buf;
use futures_util::future;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use tokio::io::AsyncWriteExt;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut args = std::env::args().skip(1);
    let (case, out) = (args.next().unwrap_or_default(), args.next().unwrap_or_default());
    let urls: Vec<String> = args.collect();
    if let Err(error) = run(&case, out.into(), &urls).await {
        eprintln!("failed: {error}");
        std::process::exit(1);
    }
}

/// Takes any certificate: what is tested stands behind it.
#[derive(Debug)]
struct Any(Arc<CryptoProvider>);

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn config(case: &str) -> Result<quinn::ClientConfig> {
    let mut provider = aws_lc_rs::default_provider();
    if case == "chacha20" {
        let only = rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256;
        // quinn needs the other one for first packets alone.
        provider.cipher_suites.retain(|suite| suite.suite() == only);
    }
    let provider = Arc::new(provider);
    let mut tls = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Any(provider)))
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    tls.enable_early_data = true;
    let initial = aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256
        .tls13()
        .and_then(|suite| suite.quic_suite())
        .ok_or("no cipher for first packets")?;
    let crypto = QuicClientConfig::with_initial(Arc::new(tls), initial)?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    let mut transport = quinn::TransportConfig::default();
    transport.max_idle_timeout(Some(Duration::from_secs(60).try_into()?));
    if case == "transfer" {
        transport.stream_receive_window(16_384u32.into());
    }
    config.transport_config(Arc::new(transport));
    Ok(config)
}

async fn run(case: &str, out: PathBuf, urls: &[String]) -> Result<()> {
    let first: http::Uri = urls.first().ok_or("no URL")?.parse()?;
    let host = first.host().ok_or("no host")?.trim_matches(['[', ']']);
    let to = SocketAddr::new(host.parse()?, first.port_u16().unwrap_or(443));
    let any: SocketAddr = if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" }.parse()?;
    let mut endpoint = quinn::Endpoint::client(any)?;
    endpoint.set_default_client_config(config(case)?);
    match case {
        "multiconnect" => {
            for url in urls {
                let connection = endpoint.connect(to, "localhost")?.await?;
                fetch_all(connection, &out, std::slice::from_ref(url), async { Ok(()) }).await?;
            }
        }
        "resumption" | "zerortt" => {
            let connection = endpoint.connect(to, "localhost")?.await?;
            fetch_all(connection, &out, &urls[..1], async { Ok(()) }).await?;
            let connecting = endpoint.connect(to, "localhost")?;
            if case == "resumption" {
                return fetch_all(connecting.await?, &out, &urls[1..], async { Ok(()) }).await;
            }
            let (connection, accepted) =
                connecting.into_0rtt().map_err(|_| "no ticket for early data")?;
            fetch_all(connection, &out, &urls[1..], async { Ok(()) }).await?;
            if !accepted.await {
                return Err("the server took no early data".into());
            }
        }
        _ => {
            let connection = endpoint.connect(to, "localhost")?.await?;
            let (case, known) = (case.to_owned(), connection.clone());
            let during = async move {
                tokio::time::sleep(Duration::from_millis(30)).await;
                match &*case {
                    "keyupdate" => known.force_key_update(),
                    "connectionmigration" => endpoint.rebind(UdpSocket::bind(any)?)?,
                    _ => {}
                }
                Ok(())
            };
            fetch_all(connection, &out, urls, during).await?;
        }
    }
    Ok(())
}

/// Gets all files over one connection.
async fn fetch_all(
    connection: quinn::Connection,
    out: &std::path::Path,
    urls: &[String],
    during: impl Future<Output = Result<()>>,
) -> Result<()> {
    let known = connection.clone();
    let (mut driver, send) = h3::client::new(h3_quinn::Connection::new(connection)).await?;
    let all = future::try_join_all(urls.iter().map(|url| {
        let mut send = send.clone();
        async move {
            let uri: http::Uri = url.parse()?;
            let name = uri.path().trim_start_matches('/').to_owned();
            let request = http::Request::get(uri).body(())?;
            let mut stream = send.send_request(request).await?;
            stream.finish().await?;
            let answer = stream.recv_response().await?;
            if answer.status() != 200 {
                return Err(format!("{} for {url}", answer.status()).into());
            }
            let mut file = tokio::fs::File::create(out.join(name)).await?;
            while let Some(mut bytes) = stream.recv_data().await? {
                let all = bytes.copy_to_bytes(bytes.remaining());
                file.write_all(&all).await?;
            }
            file.flush().await?;
            Result::Ok(())
        }
    }));
    let work = future::try_join(all, during);
    tokio::select! {
        done = work => { done?; }
        error = future::poll_fn(|cx| driver.poll_close(cx)) => return Err(error.into()),
    }
    known.close(0x100u32.into(), b"");
    known.closed().await;
    Ok(())
}
