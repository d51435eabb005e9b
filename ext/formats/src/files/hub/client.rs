//! HTTP that can be cancelled at any moment.
//!
//! Each exchange runs in a thread of its own and sends its chunks through a channel, so that
//! neither a slow name server nor a stalled connection keeps the caller from leaving. A thread
//! that is left behind ends at its next chunk or timeout.

use std::io::Read;
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use base::runtime::detached::detached;
use ureq::http::header::{HeaderMap, HeaderValue, AUTHORIZATION, IF_RANGE, LOCATION, RANGE};
use ureq::http::{Method, Request, Uri};
use ureq::tls::{parse_pem, PemItem, RootCerts, TlsConfig};

use super::name::encode_foreign_url;
use super::proxy::Proxies;
use super::settings::Settings;
use crate::{CancelToken, Error, Result};

const CHUNK_BYTES: usize = 128 << 10;
const CHUNKS_AHEAD: usize = 8;
const CANCEL_POLL: Duration = Duration::from_millis(20);
const MOST_REDIRECTS: usize = 10;

/// Why an exchange did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// The network or the server failed, not the request: worth another try.
    Transient {
        reason: String,
        wait: Option<Duration>,
    },
    Final(Error),
}

pub type Attempt<T> = std::result::Result<T, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Lookup,
    Download,
}

/// Where a download goes on, and what the server called the bytes before.
#[derive(Clone, Debug, Default)]
pub struct Resume {
    pub start: u64,
    /// Sent along, so that other contents come from their beginning.
    pub etag: Option<String>,
}

pub struct Client {
    agent: ureq::Agent,
    /// The only origin that gets the token.
    home: Option<Origin>,
    authorization: Option<HeaderValue>,
    proxies: Proxies,
    lookup_timeout: Duration,
    download_timeout: Duration,
}

impl Client {
    pub fn new(settings: &Settings) -> Result<Self> {
        let authorization = settings.token.as_deref().map(authorization).transpose()?;
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .tls_config(tls_config(settings)?)
            .user_agent(format!("red-candle/{}", crate::VERSION))
            .accept_encoding("identity")
            .build();
        Ok(Self {
            agent: config.new_agent(),
            home: settings
                .endpoint
                .parse()
                .ok()
                .and_then(|uri| Origin::of(&uri)),
            authorization,
            proxies: settings.proxies.clone(),
            lookup_timeout: settings.lookup_timeout,
            download_timeout: settings.download_timeout,
        })
    }

    /// One request without redirects.
    pub fn head(&self, url: &str, cancel: &CancelToken) -> Attempt<Response> {
        let resume = Resume::default();
        self.exchange(Method::HEAD, url, &resume, Purpose::Lookup, cancel)
    }

    /// A request from some byte on that follows redirects.
    pub fn get(
        &self,
        url: &str,
        resume: &Resume,
        purpose: Purpose,
        cancel: &CancelToken,
    ) -> Attempt<Response> {
        let mut url = url.to_owned();
        for _ in 0..MOST_REDIRECTS {
            let response = self.exchange(Method::GET, &url, resume, purpose, cancel)?;
            match response.redirect(&url) {
                Some(target) => url = target,
                None => return Ok(response),
            }
        }
        Err(Failure::Final(Error::Download(format!(
            "{url} redirects without end"
        ))))
    }

    fn exchange(
        &self,
        method: Method,
        url: &str,
        resume: &Resume,
        purpose: Purpose,
        cancel: &CancelToken,
    ) -> Attempt<Response> {
        cancel.check()?;
        let uri: Uri = url
            .parse()
            .map_err(|_| Error::Download(format!("the hub sent an invalid address: {url:?}")))?;
        let mut request = Request::builder().method(method).uri(uri.clone());
        if let (Some(value), true) = (&self.authorization, self.home == Origin::of(&uri)) {
            request = request.header(AUTHORIZATION, value);
        }
        if resume.start > 0 {
            request = request.header(RANGE, format!("bytes={}-", resume.start));
            if let Some(etag) = &resume.etag {
                request = request.header(IF_RANGE, etag);
            }
        }
        let request = request
            .body(())
            .map_err(|error| Error::Download(format!("{url} cannot be requested: {error}")))?;
        let timeout = match purpose {
            Purpose::Lookup => self.lookup_timeout,
            Purpose::Download => self.download_timeout,
        };
        let agent = self.agent.clone();
        let request = agent
            .configure_request(request)
            .proxy(self.proxies.of(&uri)?)
            .timeout_resolve(Some(timeout))
            .timeout_connect(Some(timeout))
            .timeout_recv_response(Some(timeout))
            .timeout_per_read(Some(timeout))
            .build();
        let (sender, events) = sync_channel(CHUNKS_AHEAD);
        let builder = std::thread::Builder::new().name("red-candle-hub".to_owned());
        detached(builder, move || transfer(&agent, request, &sender))
            .map_err(|error| Error::Internal(format!("cannot start a thread: {error}")))?;
        let route = match self.proxies.variable(&uri) {
            Some(variable) => format!("{} (through the proxy in {variable})", host(&uri)),
            None => host(&uri),
        };
        Response::receive(events, route, cancel)
    }
}

/// An answer whose body arrives chunk by chunk.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: HeaderMap,
    events: Receiver<Message>,
    route: String,
}

impl Response {
    fn receive(events: Receiver<Message>, route: String, cancel: &CancelToken) -> Attempt<Self> {
        match next_event(&events, &route, cancel)? {
            Event::Head(status, headers) => Ok(Self {
                status,
                headers,
                events,
                route,
            }),
            Event::Chunk(_) | Event::End => Err(lost(&route)),
        }
    }

    /// The next piece of the body, or nothing at its end.
    pub fn chunk(&self, cancel: &CancelToken) -> Attempt<Option<Vec<u8>>> {
        match next_event(&self.events, &self.route, cancel)? {
            Event::Chunk(bytes) => Ok(Some(bytes)),
            Event::End => Ok(None),
            Event::Head(..) => Err(lost(&self.route)),
        }
    }

    /// The whole body, refused beyond `limit` bytes.
    pub fn body(&self, limit: usize, cancel: &CancelToken) -> Attempt<Vec<u8>> {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk(cancel)? {
            if body.len() + chunk.len() > limit {
                return Err(Failure::Final(Error::Download(format!(
                    "{} answers with more than {limit} bytes where a short answer was expected",
                    self.route
                ))));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Where this answer to `url` leads, if it is a redirect.
    pub fn redirect(&self, url: &str) -> Option<String> {
        if !(300..400).contains(&self.status) {
            return None;
        }
        let location = String::from_utf8_lossy(self.headers.get(LOCATION)?.as_bytes()).into_owned();
        join(url, &location)
    }
}

#[derive(Debug)]
enum Event {
    Head(u16, HeaderMap),
    Chunk(Vec<u8>),
    End,
}

type Message = std::result::Result<Event, ureq::Error>;

fn next_event(events: &Receiver<Message>, route: &str, cancel: &CancelToken) -> Attempt<Event> {
    loop {
        cancel.check()?;
        match events.recv_timeout(CANCEL_POLL) {
            Ok(Ok(event)) => return Ok(event),
            Ok(Err(error)) => return Err(failure(route, &error)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(lost(route)),
        }
    }
}

/// Runs in the exchange's thread; a receiver that is gone ends it.
fn transfer(agent: &ureq::Agent, request: Request<()>, sender: &SyncSender<Message>) {
    if let Err(error) = send_all(agent, request, sender) {
        let _ = sender.send(Err(error));
    }
}

fn send_all(
    agent: &ureq::Agent,
    request: Request<()>,
    sender: &SyncSender<Message>,
) -> std::result::Result<(), ureq::Error> {
    let response = agent.run(request)?;
    let (head, body) = response.into_parts();
    let mut gone = sender
        .send(Ok(Event::Head(head.status.as_u16(), head.headers)))
        .is_err();
    let mut reader = body.into_with_config().limit(u64::MAX).reader();
    while !gone {
        let mut chunk = vec![0; CHUNK_BYTES];
        let count = reader.read(&mut chunk)?;
        chunk.truncate(count);
        let event = if count == 0 {
            Event::End
        } else {
            Event::Chunk(chunk)
        };
        gone = sender.send(Ok(event)).is_err() || count == 0;
    }
    Ok(())
}

fn failure(route: &str, error: &ureq::Error) -> Failure {
    let reason = match error {
        ureq::Error::Timeout(_) => format!("{route} does not answer"),
        ureq::Error::HostNotFound => format!("{route} is not known to the name server"),
        other => format!("the connection to {route} failed: {other}"),
    };
    let wrong_certificate = matches!(error, ureq::Error::Io(inner)
        if inner.kind() == std::io::ErrorKind::InvalidData && inner.to_string().contains("certificate"));
    match error {
        _ if wrong_certificate => Failure::Final(Error::Download(format!(
            "{reason}. If the certificate is one of your own, name its file in SSL_CERT_FILE"
        ))),
        ureq::Error::Tls(_)
        | ureq::Error::Rustls(_)
        | ureq::Error::Pem(_)
        | ureq::Error::BadUri(_)
        | ureq::Error::Http(_)
        | ureq::Error::InvalidProxyUrl
        | ureq::Error::ConnectProxyFailed(_) => Failure::Final(Error::Download(format!(
            "{reason}. Check HF_ENDPOINT, HTTPS_PROXY and SSL_CERT_FILE"
        ))),
        _ => Failure::Transient { reason, wait: None },
    }
}

fn lost(route: &str) -> Failure {
    Failure::Transient {
        reason: format!("the connection to {route} was lost"),
        wait: None,
    }
}

fn authorization(token: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
        Error::InvalidInput(
            "the Hugging Face token contains characters that tokens don't have. Check HF_TOKEN"
                .to_owned(),
        )
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn tls_config(settings: &Settings) -> Result<TlsConfig> {
    let Some(path) = &settings.certificates else {
        return Ok(TlsConfig::default());
    };
    let unusable = |reason: String| {
        Error::InvalidInput(format!(
            "SSL_CERT_FILE names {}, which cannot be used: {reason}",
            path.display()
        ))
    };
    let text = std::fs::read(path).map_err(|error| unusable(error.to_string()))?;
    let certificates: Vec<_> = parse_pem(&text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(unusable("it holds no certificate".to_owned()));
    }
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&certificates))
        .build())
}

/// Scheme, host and port: who gets to see a secret.
#[derive(Debug, PartialEq, Eq)]
struct Origin(String, String, u16);

impl Origin {
    fn of(uri: &Uri) -> Option<Self> {
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let port = uri
            .port_u16()
            .unwrap_or(if scheme == "http" { 80 } else { 443 });
        Some(Self(scheme, uri.host()?.to_ascii_lowercase(), port))
    }
}

pub fn same_origin(one: &str, other: &str) -> bool {
    let origin = |url: &str| url.parse().ok().and_then(|uri| Origin::of(&uri));
    matches!((origin(one), origin(other)), (Some(one), Some(other)) if one == other)
}

fn host(uri: &Uri) -> String {
    uri.authority().map_or_else(String::new, |authority| {
        let text = authority.as_str();
        text.rsplit('@').next().unwrap_or(text).to_owned()
    })
}

/// A `Location`, which may be relative, as an absolute http(s) URL.
fn join(base: &str, location: &str) -> Option<String> {
    let location = encode_foreign_url(location.trim());
    let scheme = location.split(['/', '?', '#']).next().unwrap_or_default();
    if scheme.ends_with(':') {
        return Some(location)
            .filter(|url| url.starts_with("http://") || url.starts_with("https://"));
    }
    let uri: Uri = base.parse().ok()?;
    let (scheme, authority) = (uri.scheme_str()?, uri.authority()?);
    if location.starts_with("//") {
        return Some(format!("{scheme}:{location}"));
    }
    if location.starts_with('/') {
        return Some(format!("{scheme}://{authority}{location}"));
    }
    let folder = uri.path().rsplit_once('/').map_or("", |(folder, _)| folder);
    Some(format!("{scheme}://{authority}{folder}/{location}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_become_absolute() {
        let base = "https://hub.example:8443/a/b?x=1";
        let join = |location| join(base, location);
        assert_eq!(
            join("/c?d=http://f").as_deref(),
            Some("https://hub.example:8443/c?d=http://f")
        );
        assert_eq!(
            join("/c?d=e").as_deref(),
            Some("https://hub.example:8443/c?d=e")
        );
        assert_eq!(join("c").as_deref(), Some("https://hub.example:8443/a/c"));
        assert_eq!(
            join("//cdn.example/c").as_deref(),
            Some("https://cdn.example/c")
        );
        assert_eq!(
            join("http://cdn.example/c d").as_deref(),
            Some("http://cdn.example/c%20d")
        );
        assert_eq!(join("file:///etc/passwd"), None);
    }

    #[test]
    fn a_wrong_certificate_is_told_at_once() {
        let inner = "invalid peer certificate: UnknownIssuer";
        let error = std::io::Error::new(std::io::ErrorKind::InvalidData, inner);
        let failure = failure("hub.example", &ureq::Error::Io(error));
        let Failure::Final(Error::Download(message)) = failure else {
            panic!("{failure:?}");
        };
        assert!(message.contains("SSL_CERT_FILE"), "{message}");
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let failure = super::failure("hub.example", &ureq::Error::Io(reset));
        assert!(matches!(failure, Failure::Transient { .. }));
    }

    #[test]
    fn origins_differ_by_scheme_host_and_port() {
        assert!(same_origin(
            "https://hub.example/a",
            "https://HUB.example:443/b"
        ));
        assert!(!same_origin(
            "https://hub.example/a",
            "http://hub.example/a"
        ));
        assert!(!same_origin(
            "http://hub.example/a",
            "http://hub.example:81/a"
        ));
        assert!(!same_origin(
            "http://hub.example/a",
            "http://hub.example.evil/a"
        ));
    }
}
