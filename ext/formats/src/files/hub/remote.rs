//! The hub's protocol: what a repository holds, and how it says no.

use std::time::{Duration, Instant};

use serde::Deserialize;

use super::client::{same_origin, Attempt, Client, Failure, Purpose, Response, Resume};
use super::{name, pause};
use crate::{CancelToken, Error, Result};

/// How often a request is tried before the user hears of it.
pub const TRIES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// No further try begins this long after the first one that failed, or the last that brought something.
const LONGEST_RETRYING: Duration = Duration::from_secs(60);
const MOST_REDIRECTS: usize = 10;
const LARGEST_LISTING: usize = 64 << 20;

/// One version of one file, as the hub describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    pub commit: String,
    pub etag: String,
    pub size: Option<u64>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Entry {
    Present(Description),
    /// The commit is known when the hub told it along with its no.
    Absent {
        commit: Option<String>,
    },
}

#[derive(Debug)]
pub struct Listing {
    pub commit: String,
    pub files: Vec<String>,
}

pub struct Remote<'a> {
    pub client: &'a Client,
    pub endpoint: &'a str,
    pub id: &'a str,
}

impl Remote<'_> {
    pub fn file_url(&self, revision: &str, file: &str) -> String {
        format!(
            "{}/{}/resolve/{}/{}",
            self.endpoint,
            self.id,
            name::encode_segment(revision),
            name::encode_path(file)
        )
    }

    pub fn entry(
        &self,
        revision: &str,
        file: &str,
        tries: u32,
        cancel: &CancelToken,
    ) -> Result<Entry> {
        with_retries(tries, cancel, || self.describe(revision, file, cancel))
            .map_err(|error| self.about(file, error))
    }

    pub fn listing(&self, revision: &str, tries: u32, cancel: &CancelToken) -> Result<Listing> {
        with_retries(tries, cancel, || self.list(revision, cancel))
            .map_err(|error| self.about("the list of files", error))
    }

    /// What went wrong, with what was asked for.
    pub fn about(&self, what: &str, error: Error) -> Error {
        match error {
            Error::Download(reason) => Error::Download(format!(
                "cannot fetch {what} of {}: {}",
                self.id,
                name::redacted(&reason)
            )),
            Error::ModelNotFound(reason) => Error::ModelNotFound(name::redacted(&reason)),
            other => other,
        }
    }

    /// The headers of the hub itself count, not those of the store that it redirects to; a renamed
    /// repository however is followed to its new name.
    fn describe(&self, revision: &str, file: &str, cancel: &CancelToken) -> Attempt<Entry> {
        let mut url = self.file_url(revision, file);
        let mut commit = None;
        for _ in 0..MOST_REDIRECTS {
            let response = self.client.head(&url, cancel)?;
            commit = response
                .header("x-repo-commit")
                .map(str::to_owned)
                .or(commit);
            let redirect = response.redirect(&url);
            let follow = redirect.filter(|target| {
                let described = commit.is_some() && response.header("x-linked-etag").is_some();
                !described && (commit.is_none() || same_origin(target, &url))
            });
            match follow {
                Some(target) => url = target,
                None => return self.judge(revision, &response, commit, cancel),
            }
        }
        Err(Failure::Final(Error::Download(format!(
            "{url} redirects without end"
        ))))
    }

    fn judge(
        &self,
        revision: &str,
        response: &Response,
        commit: Option<String>,
        cancel: &CancelToken,
    ) -> Attempt<Entry> {
        let commit = commit.filter(|commit| name::is_safe_component(commit));
        match (response.status, response.header("x-error-code")) {
            (200..=399, _) => describe_file(response, commit).map(Entry::Present),
            (404, Some("EntryNotFound")) => Ok(Entry::Absent { commit }),
            (404, None) if commit.is_some() => Ok(Entry::Absent { commit }),
            // A plain 404 does not say what is missing: the file, the revision or the repository.
            (404, None) => self.list(revision, cancel).map(|listing| Entry::Absent {
                commit: Some(listing.commit),
            }),
            _ => Err(self.refusal(revision, response)),
        }
    }

    fn list(&self, revision: &str, cancel: &CancelToken) -> Attempt<Listing> {
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
        }
        #[derive(Deserialize)]
        struct Answer {
            sha: String,
            #[serde(default)]
            siblings: Vec<Sibling>,
        }
        let url = format!(
            "{}/api/models/{}/revision/{}",
            self.endpoint,
            self.id,
            name::encode_segment(revision)
        );
        let response = self
            .client
            .get(&url, &Resume::default(), Purpose::Lookup, cancel)?;
        if response.status != 200 {
            return Err(self.refusal(revision, &response));
        }
        let body = response.body(LARGEST_LISTING, cancel)?;
        let answer: Answer =
            serde_json::from_slice(&body).map_err(|error| self.foreign(&error.to_string()))?;
        if !name::is_safe_component(&answer.sha) {
            return Err(self.foreign("what it calls a commit is not one"));
        }
        let names = answer.siblings.into_iter().map(|sibling| sibling.rfilename);
        Ok(Listing {
            commit: answer.sha,
            files: names
                .filter(|file| name::check_file(file).is_ok())
                .collect(),
        })
    }

    fn foreign(&self, reason: &str) -> Failure {
        Failure::Final(Error::Download(format!(
            "{} does not answer as the hub does: {reason}. Check HF_ENDPOINT",
            self.endpoint
        )))
    }

    /// A status that stands in the way, as an error that says what to do.
    pub fn refusal(&self, revision: &str, response: &Response) -> Failure {
        let (id, endpoint, status) = (self.id, self.endpoint, response.status);
        let code = response.header("x-error-code").unwrap_or_default();
        let said = response
            .header("x-error-message")
            .map_or_else(String::new, quoted);
        let login = "log in: create a token in the settings of your Hugging Face account and set HF_TOKEN to it \
                     (or run `hf auth login`)";
        let error = match (status, code) {
            (403, "GatedRepo" | "") if said.to_lowercase().contains("awaiting") => Error::Download(format!(
                "your request for access to {id} is not accepted yet (status {status}{said}). Wait until its owners have \
                 answered, which {endpoint}/settings/gated-repos shows, then try again"
            )),
            (401 | 403 | 404, "GatedRepo") | (403, "") => Error::Download(format!(
                "{id} is gated (status {status}{said}). Accept its conditions on {endpoint}/{id}, then {login}"
            )),
            (401 | 404, "RepoNotFound") | (404, "") => Error::ModelNotFound(format!(
                "there is no model {id} on {endpoint}. Check the spelling; if it is private, {login}"
            )),
            (404, "RevisionNotFound") => Error::ModelNotFound(format!(
                "{id} has no revision {revision:?}. Use one of its branches, tags or full commit hashes"
            )),
            (401, _) => Error::Download(format!(
                "{endpoint} gives {id} only to those who are logged in (status 401{said}): it is private or gated, does not \
                 exist, or the token is wrong. To {login}"
            )),
            (429, _) => {
                return Failure::Transient {
                    reason: format!(
                        "{endpoint} has a rate limit, and it is reached (status 429{said}). Wait a few minutes, or \
                         {login}, which raises it"
                    ),
                    wait: retry_after(response),
                }
            }
            (408 | 425 | 500 | 502 | 503 | 504, _) => {
                return Failure::Transient {
                    reason: format!("{endpoint} answers with status {status}{said}"),
                    wait: retry_after(response),
                }
            }
            _ => Error::Download(format!("{endpoint} answers with status {status}{said}")),
        };
        Failure::Final(error)
    }
}

fn describe_file(response: &Response, commit: Option<String>) -> Attempt<Description> {
    let etag = response
        .header("x-linked-etag")
        .or_else(|| response.header("etag"));
    let etag = etag
        .map(|etag| {
            etag.trim()
                .trim_start_matches("W/")
                .trim_matches('"')
                .to_owned()
        })
        .filter(|etag| name::is_safe_component(etag));
    let linked_size = response.header("x-linked-size");
    // The length of a redirect is not that of the file.
    let own_size = response
        .header("content-length")
        .filter(|_| response.status == 200);
    let size = linked_size
        .or(own_size)
        .and_then(|size| size.trim().parse().ok());
    match (commit, etag) {
        (Some(commit), Some(etag)) => Ok(Description { commit, etag, size }),
        _ => Err(Failure::Final(Error::Download(
            "the server names neither commit nor etag, so it is not a hub. Check HF_ENDPOINT"
                .to_owned(),
        ))),
    }
}

fn retry_after(response: &Response) -> Option<Duration> {
    let seconds = response.header("retry-after")?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_WAIT))
}

/// A server's words, cut to what fits a message.
fn quoted(message: &str) -> String {
    let text: String = message
        .chars()
        .filter(|c| !c.is_control())
        .take(200)
        .collect();
    format!(": {text}")
}

/// Tries until something other than a transient failure comes back, waiting longer each time.
pub fn with_retries<T>(
    tries: u32,
    cancel: &CancelToken,
    mut attempt: impl FnMut() -> Attempt<T>,
) -> Result<T> {
    let mut retry = Retry::new(tries);
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(failure) => retry.after(failure, cancel)?,
        }
    }
}

/// What is left of the patience with one request.
pub struct Retry {
    tries: u32,
    left: u32,
    since: Instant,
    longest: Duration,
}

impl Retry {
    pub fn new(tries: u32) -> Self {
        Self {
            tries,
            left: tries,
            since: Instant::now(),
            longest: LONGEST_RETRYING,
        }
    }

    /// Something was achieved: the next failure is a first one again.
    pub fn progressed(&mut self) {
        self.left = self.tries;
        self.since = Instant::now();
    }

    /// Waits for the next try, or returns the error.
    pub fn after(&mut self, failure: Failure, cancel: &CancelToken) -> Result<()> {
        let (reason, wait) = match failure {
            Failure::Final(error) => return Err(error),
            Failure::Transient { reason, wait } => (reason, wait),
        };
        self.left = self.left.saturating_sub(1);
        let tried = self.tries - self.left;
        let doubled = FIRST_WAIT * 2_u32.saturating_pow(tried.saturating_sub(1));
        let wait = wait.unwrap_or(doubled).min(LONGEST_WAIT);
        let passed = self.since.elapsed();
        if self.left == 0 || passed + wait > self.longest {
            let times = match tried {
                _ if self.tries <= 1 => String::new(),
                1 => format!(" (tried once in {:.0} s)", passed.as_secs_f32()),
                _ => format!(" (tried {tried} times in {:.0} s)", passed.as_secs_f32()),
            };
            return Err(Error::Download(format!(
                "{reason}{times}. Check the network, or set HF_HUB_OFFLINE=1 to use what is cached"
            )));
        }
        base::runtime::log::debug(format!(
            "{reason}; another try in {:.2} s",
            wait.as_secs_f32()
        ));
        pause(wait, cancel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(wait: Option<Duration>) -> Failure {
        Failure::Transient {
            reason: "no answer".to_owned(),
            wait,
        }
    }

    #[test]
    fn retrying_ends_in_bounded_time_and_says_how_long_it_took() {
        let cancel = CancelToken::new();
        let mut retry = Retry::new(5);
        retry.longest = Duration::from_millis(600);
        let started = Instant::now();
        let error = loop {
            if let Err(error) = retry.after(refused(None), &cancel) {
                break error;
            }
        };
        assert!(started.elapsed() < Duration::from_secs(2));
        assert!(
            error.to_string().contains("tried 2 times in 0 s"),
            "{error}"
        );
        let mut patient = Retry::new(5);
        patient.since -= Duration::from_secs(30);
        let hour = Some(Duration::from_secs(3600));
        let error = patient.after(refused(hour), &cancel).unwrap_err();
        assert!(error.to_string().contains("tried once in 30 s"), "{error}");
    }
}
