//! Building images, by the engine's own builder.
//!
//! A build that fails, or that nobody waits for any more, leaves no container and no image: what its steps have made is
//! removed again. An image that another build uses meanwhile stays.

mod progress;

use std::{collections::HashMap, io, time::Duration};

use bollard::{
    Docker, body_try_stream,
    query_parameters::{
        BuildImageOptions, BuildImageOptionsBuilder, RemoveImageOptionsBuilder, TagImageOptionsBuilder,
    },
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use sandbox_agent_client::BuildContext;
use sandbox_core::{
    BuildEvent, BuildImage, BuildRequest, BuiltImage, ControlReply, ControlRequest, ErrorKind, Result, SandboxError,
    Session, SessionControl, SessionSink, async_trait, tracing,
};
use tokio::{sync::mpsc, time::Instant};

use self::progress::Progress;
use crate::{
    auth,
    config::{PullPolicy, is_platform},
    engine::Engine,
    error::{self, NAME},
    image::Reference,
    provider::{DockerProvider, Shared},
};

/// How many pieces of the archive wait for the engine.
const PIECES_AHEAD: usize = 4;

/// How long the engine may take to end what a build that was broken off ran.
const END_LIMIT: Duration = Duration::from_secs(30);
const END_PAUSE: Duration = Duration::from_millis(20);

#[async_trait]
impl BuildImage for DockerProvider {
    async fn build_image(&self, request: BuildRequest) -> Result<Session<BuildEvent>> {
        let references = check(&request)?;
        let opened = {
            let request = request.clone();
            tokio::task::spawn_blocking(move || BuildContext::open(&request)).await
        };
        let opened = opened.unwrap_or_else(|_| Err(SandboxError::internal("reading the context panicked")));
        let context = opened.map_err(|error| error.with_provider(NAME))?;
        let engine = &self.shared.engine;
        let credentials = auth::all(&engine.config).await?;
        let options = options(&request, &context, engine)?;
        // An engine that is not there is told at once.
        engine.docker().await?;
        let (sink, session) = Session::channel(NoControl);
        let build = Build { shared: self.shared.clone(), context, options, credentials, references };
        // Not a task that ends with the session: what was begun is taken back.
        tokio::spawn(build.run(sink));
        Ok(session)
    }
}

/// Checks what needs nothing but the request; gives the names of the image.
fn check(request: &BuildRequest) -> Result<Vec<Reference>> {
    let invalid = |field: &str, why: &str| SandboxError::invalid_input(field, why).with_provider(NAME);
    if request.target.as_deref().is_some_and(|target| target.trim().is_empty()) {
        return Err(invalid("target", "must not be empty"));
    }
    if request.labels.keys().any(String::is_empty) {
        return Err(invalid("labels", "must not have an empty name"));
    }
    if let Some(platform) = request.platform.as_deref().filter(|platform| !is_platform(platform)) {
        return Err(invalid("platform", &format!("{platform:?} must be os/architecture[/variant]")));
    }
    let reference = |(index, tag): (usize, &String)| {
        let field = format!("tags[{index}]");
        let reference = Reference::parse(tag).map_err(|error| {
            let why = error.message().split_once(": ").map_or(error.message(), |(_, why)| why).to_owned();
            invalid(&field, &why)
        })?;
        match reference.is_pinned() {
            true => Err(invalid(&field, "must be a name with a tag, not a digest or an id")),
            false => Ok(reference),
        }
    };
    request.tags.iter().enumerate().map(reference).collect()
}

fn options(request: &BuildRequest, context: &BuildContext, engine: &Engine) -> Result<BuildImageOptions> {
    let mut args = HashMap::new();
    for (name, value) in request.args.iter() {
        let value = std::str::from_utf8(value.as_bytes()).map_err(|_| {
            let message = "must be UTF-8: the engine takes text only";
            SandboxError::invalid_input(format!("args.{name}"), message).with_provider(NAME)
        })?;
        args.insert(name, value);
    }
    let labels: HashMap<&str, &str> =
        request.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut options = BuildImageOptionsBuilder::default()
        .dockerfile(&context.dockerfile)
        .nocache(request.no_cache)
        .rm(true)
        .forcerm(true)
        .buildargs(&args)
        .labels(&labels);
    if request.pull || engine.config.pull == PullPolicy::Always {
        options = options.pull("true");
    }
    if let Some(target) = &request.target {
        options = options.target(target);
    }
    if let Some(platform) = request.platform.as_deref().or(engine.config.platform.as_deref()) {
        options = options.platform(platform);
    }
    Ok(options.build())
}

struct Build {
    shared: std::sync::Arc<Shared>,
    context: BuildContext,
    options: BuildImageOptions,
    credentials: HashMap<String, bollard::auth::DockerCredentials>,
    references: Vec<Reference>,
}

impl Build {
    async fn run(self, sink: SessionSink<BuildEvent>) {
        let shared = self.shared.clone();
        let limit = Duration::from_secs_f64(shared.engine.config.build_timeout_s);
        let mut progress = Progress::default();
        let built = tokio::select! {
            biased;
            () = sink.closed() => Err(SandboxError::create("nobody waits for the image any more")),
            built = tokio::time::timeout(limit, self.build(&mut progress, &sink)) => built.unwrap_or_else(|_| {
                let message = format!("the build took longer than build_timeout_s = {}", limit.as_secs_f64());
                Err(SandboxError::timed_out(message).with_provider(NAME))
            }),
        };
        match built {
            Ok(image) => drop(sink.send(BuildEvent::Built(BuiltImage { image })).await),
            Err(error) => {
                take_back(&shared.engine, &progress).await;
                sink.fail(error).await;
            }
        }
    }

    async fn build(self, progress: &mut Progress, sink: &SessionSink<BuildEvent>) -> Result<String> {
        let engine = &self.shared.engine;
        if engine.config.pull == PullPolicy::Never {
            has_bases(engine, &self.context.text).await?;
        }
        // The answer begins when the whole context has arrived.
        let limit = Duration::from_secs_f64(engine.config.build_timeout_s);
        let docker = engine.docker().await?.clone().with_timeout(limit);
        let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(PIECES_AHEAD);
        let packing = tokio::task::spawn_blocking(move || self.context.pack(sender));
        let pieces = stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) });
        let has_credentials = !self.credentials.is_empty();
        let credentials = has_credentials.then_some(self.credentials);
        let mut said = Box::pin(docker.build_image(self.options, credentials, Some(body_try_stream(pieces))));
        let failure = loop {
            match said.next().await {
                None => break None,
                Some(Ok(said)) => {
                    if let Some(text) = progress.push(said) {
                        // Whether anybody reads it is looked at elsewhere.
                        sink.send(BuildEvent::Log(text)).await;
                    }
                }
                Some(Err(error)) => break Some(error),
            }
        };
        drop(said);
        // A context that could not be read is why the engine failed, if it is. One that the engine did not want is not.
        let packed = packing.await.unwrap_or_else(|_| Err(SandboxError::internal("packing the context panicked")));
        let packed = packed.map_err(|error| error.with_provider(NAME));
        if let Some(error) = failure {
            let was_read = packed.as_ref().err().is_none_or(is_unwanted);
            return Err(if was_read { progress.failure(error, has_credentials) } else { packed.unwrap_err() });
        }
        let Some(image) = progress.image().map(str::to_owned) else {
            return Err(SandboxError::create("the engine said no image at the end of the build").with_provider(NAME));
        };
        for reference in &self.references {
            let (repo, tag) = reference.name_and_tag();
            let options = TagImageOptionsBuilder::default().repo(repo).tag(tag).build();
            let tagged = docker.tag_image(&image, Some(options)).await;
            tagged.map_err(|error| error::engine("naming the image", error).with_field("tags"))?;
        }
        Ok(image)
    }
}

fn is_unwanted(error: &SandboxError) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Without pulls every image that a build begins with must be there. What is put together from arguments is left to the
/// engine.
async fn has_bases(engine: &Engine, dockerfile: &str) -> Result<()> {
    for base in bases(dockerfile) {
        let Ok(reference) = Reference::parse(base) else { continue };
        match engine.docker().await?.inspect_image(&reference.full()).await {
            Err(error) if error::is_missing(&error) => {
                return Err(SandboxError::not_found(format!(
                    "the engine does not have the image {}",
                    reference.full()
                ))
                .with_provider(NAME)
                .with_field("dockerfile")
                .with_help("pull = \"never\" is set: pull it first, or set pull = \"if_missing\""));
            }
            found => drop(found.map_err(|error| error::engine("looking for the image", error))?),
        }
    }
    Ok(())
}

/// The images that stages begin with, as far as they are said outright.
fn bases(dockerfile: &str) -> Vec<&str> {
    let mut stages = Vec::new();
    let mut bases = Vec::new();
    for line in dockerfile.lines() {
        let mut words = line.split_whitespace();
        if !words.next().is_some_and(|word| word.eq_ignore_ascii_case("from")) {
            continue;
        }
        let mut words = words.filter(|word| !word.starts_with("--"));
        let Some(base) = words.next() else { continue };
        if base != "scratch"
            && !base.contains('$')
            && !stages.iter().any(|stage: &&str| base.eq_ignore_ascii_case(stage))
        {
            bases.push(base);
        }
        if words.next().is_some_and(|word| word.eq_ignore_ascii_case("as")) {
            stages.extend(words.next());
        }
    }
    bases
}

/// Removes what a build has made that came to nothing. The engine itself ends what runs.
async fn take_back(engine: &Engine, progress: &Progress) {
    let Ok(docker) = engine.docker().await else { return };
    let end = Instant::now() + END_LIMIT;
    for container in &progress.containers {
        // Only waited for: the name comes from a text that steps write into, too.
        while Instant::now() < end && docker.inspect_container(container, None).await.is_ok() {
            tokio::time::sleep(END_PAUSE).await;
        }
    }
    for image in progress.made.iter().rev() {
        remove(docker, image).await;
    }
}

/// Removes an image that has no name. One with a name is somebody's.
async fn remove(docker: &Docker, image: &str) {
    let Ok(found) = docker.inspect_image(image).await else { return };
    let is_id = found.id.as_deref().and_then(|id| id.strip_prefix("sha256:")).is_some_and(|id| id.starts_with(image));
    if !is_id || found.repo_tags.is_some_and(|tags| !tags.is_empty()) {
        return;
    }
    let options = RemoveImageOptionsBuilder::default().noprune(true).build();
    if let Err(error) = docker.remove_image(image, Some(options), None).await
        && !error::is_missing(&error)
    {
        let kind = error::engine("removing an image", error).kind();
        tracing::debug!(%kind, "an image of a build that came to nothing stays");
    }
}

/// A build takes no input, and ends when its session is dropped.
struct NoControl;

#[async_trait]
impl SessionControl for NoControl {
    async fn write(&self, _data: Bytes) -> Result<()> {
        Err(SandboxError::new(ErrorKind::InvalidState, "a build takes no input").with_provider(NAME))
    }

    async fn control(&self, _request: ControlRequest) -> Result<ControlReply> {
        Err(SandboxError::unsupported_control(NAME, None))
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::BuildRequest;

    use super::{bases, check};

    #[test]
    fn the_images_of_stages_are_found() {
        let text = "ARG V=1\nFROM --platform=linux/amd64 a:1 AS one\nfrom b\nFROM One\nFROM scratch\nFROM c:$V\nRUN x";
        assert_eq!(bases(text), ["a:1", "b"]);
    }

    #[test]
    fn wrong_values_are_refused_with_their_field() {
        let digest = format!("a@sha256:{}", "a".repeat(64));
        type Change = fn(&mut BuildRequest);
        let cases: [(&str, Change); 4] = [
            ("target", |request| request.target = Some(" ".to_owned())),
            ("labels", |request| drop(request.labels.insert(String::new(), String::new()))),
            ("platform", |request| request.platform = Some("arm".to_owned())),
            ("tags[1]", |request| request.tags = vec!["ok".to_owned(), "Not OK".to_owned()]),
        ];
        for (field, change) in cases {
            let mut request = BuildRequest::default();
            change(&mut request);
            assert_eq!(check(&request).unwrap_err().field(), Some(field));
        }
        let request = BuildRequest { tags: vec![digest], ..BuildRequest::default() };
        assert_eq!(check(&request).unwrap_err().field(), Some("tags[0]"));
    }
}
