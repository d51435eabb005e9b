//! Which proxy a request goes through: the conventions of curl and Python.

use ureq::http::Uri;

use crate::{Error, Result};

#[derive(Clone, Debug, Default)]
pub struct Proxies {
    /// Variable and value, for each scheme.
    http: Option<(&'static str, String)>,
    https: Option<(&'static str, String)>,
    exceptions: Vec<String>,
}

impl Proxies {
    pub fn read(variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let first =
            |names: &[&'static str]| names.iter().find_map(|name| Some((*name, variable(name)?)));
        let exceptions = variable("no_proxy").or_else(|| variable("NO_PROXY"));
        Self {
            http: first(&["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"]),
            https: first(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]),
            exceptions: exceptions
                .iter()
                .flat_map(|list| list.split(','))
                .map(|entry| entry.trim().to_ascii_lowercase())
                .filter(|entry| !entry.is_empty())
                .collect(),
        }
    }

    pub fn of(&self, uri: &Uri) -> Result<Option<ureq::Proxy>> {
        let Some((name, value)) = self.wanted(uri) else {
            return Ok(None);
        };
        ureq::Proxy::new(value).map(Some).map_err(|_| {
            Error::Download(format!(
                "the proxy in {name} is not a usable URL. Correct or unset {name}"
            ))
        })
    }

    /// The variable that sends `uri` through a proxy, for messages.
    pub fn variable(&self, uri: &Uri) -> Option<&'static str> {
        self.wanted(uri).map(|(name, _)| *name)
    }

    fn wanted(&self, uri: &Uri) -> Option<&(&'static str, String)> {
        let wanted = match uri.scheme_str() {
            Some("http") => &self.http,
            _ => &self.https,
        };
        wanted.as_ref().filter(|_| !self.excepts(uri))
    }

    fn excepts(&self, uri: &Uri) -> bool {
        let host = uri.host().unwrap_or_default().to_ascii_lowercase();
        let with_port = uri.port_u16().map(|port| format!("{host}:{port}"));
        self.exceptions.iter().any(|entry| {
            let domain = entry.trim_start_matches("*.").trim_start_matches('.');
            entry == "*"
                || host == domain
                || with_port.as_deref() == Some(domain)
                || host
                    .strip_suffix(domain)
                    .is_some_and(|rest| rest.ends_with('.'))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(variables: &[(&str, &str)]) -> Proxies {
        Proxies::read(&|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn host(proxies: &Proxies, url: &str) -> Option<String> {
        let proxy = proxies.of(&url.parse().unwrap()).unwrap();
        proxy.map(|proxy| proxy.host().to_owned())
    }

    #[test]
    fn each_scheme_has_its_variable_and_exceptions_go_direct() {
        let proxies = proxies(&[
            ("HTTPS_PROXY", "http://secure:3128"),
            ("ALL_PROXY", "http://any:1"),
            (
                "NO_PROXY",
                "localhost, .inner.example,127.0.0.1:80,covered.example",
            ),
        ]);
        assert_eq!(
            host(&proxies, "https://hub.example/x").as_deref(),
            Some("secure")
        );
        assert_eq!(
            host(&proxies, "http://hub.example/x").as_deref(),
            Some("any")
        );
        assert_eq!(host(&proxies, "http://localhost:9/x"), None);
        assert_eq!(host(&proxies, "https://a.inner.example"), None);
        assert_eq!(
            host(&proxies, "https://notinner.example").as_deref(),
            Some("secure")
        );
        assert_eq!(host(&proxies, "https://a.covered.example"), None);
        assert_eq!(host(&proxies, "http://127.0.0.1:80/x"), None);
        assert_eq!(
            host(&proxies, "http://127.0.0.1:81/x").as_deref(),
            Some("any")
        );
    }

    #[test]
    fn an_unusable_proxy_is_named() {
        let proxies = proxies(&[("https_proxy", "ftp://user:secret@proxy")]);
        let error = proxies
            .of(&"https://hub.example".parse().unwrap())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("https_proxy") && !error.contains("secret"),
            "{error}"
        );
    }
}
