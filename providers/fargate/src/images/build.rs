//! Building images from folders of this machine.

use std::{io, path::Path, sync::Arc};

use sandbox_agent_client::{BuildContext, random_hex};
use sandbox_core::{
    BuildEvent, BuildImage, BuildRequest, BuiltImage, ControlReply, ControlRequest, Result, SandboxError, Session,
    SessionControl, SessionSink, async_trait, bytes::Bytes,
};
use serde_json::json;
use tokio::{sync::mpsc, time::Instant};

use super::{
    HASH_DIGITS, LOG_IN,
    archive::Archive,
    build_spec,
    job::{Order, say},
    made, plain, platform, readable,
};
use crate::{
    aws::{Object, Repository},
    error::NAME,
    provider::{CALL_LIMIT, FargateProvider, Shared},
};

/// How many pieces of the context wait to be written.
const PIECES_AHEAD: usize = 4;
/// What every file of a context is said to have been changed at, so that the same contents are the same: 1980-01-01.
const CHANGED_AT: u64 = 315_532_800;

#[async_trait]
impl BuildImage for FargateProvider {
    async fn build_image(&self, request: BuildRequest) -> Result<Session<BuildEvent>> {
        let opened = {
            let request = request.clone();
            tokio::task::spawn_blocking(move || BuildContext::open(&request)).await
        };
        let opened = opened.unwrap_or_else(|_| Err(SandboxError::internal("reading the context panicked")));
        let context = opened.map_err(|error| error.with_provider(NAME))?;
        let shared = self.shared.clone();
        Ok(Session::spawn(NoControl, move |sink| async move {
            tokio::select! {
                biased;
                () = sink.closed() => Ok(()),
                built = build(&shared, &request, context, Some(&sink)) => {
                    let built = BuiltImage { image: built.map_err(|error| error.with_provider(NAME))? };
                    sink.send(BuildEvent::Built(built)).await;
                    Ok(())
                }
            }
        }))
    }
}

/// Builds the folder of an environment, if its image is not there already. Gives the reference.
///
/// # Errors
/// As a build.
pub(crate) async fn build_folder(shared: &Arc<Shared>, folder: &str) -> Result<String> {
    let request = BuildRequest { context: folder.to_owned(), ..BuildRequest::default() };
    let opened = {
        let request = request.clone();
        tokio::task::spawn_blocking(move || BuildContext::open(&request)).await
    };
    let opened = opened.unwrap_or_else(|_| Err(SandboxError::internal("reading the context panicked")));
    let field = "provider_options.environment_dir";
    let context = opened.map_err(|error| error.with_provider(NAME).with_field(field))?;
    build(shared, &request, context, None).await
}

/// An archive for the service, and what is in it.
struct Packed {
    file: tempfile::NamedTempFile,
    tag: String,
}

async fn build(
    shared: &Arc<Shared>,
    request: &BuildRequest,
    context: BuildContext,
    sink: Option<&SessionSink<BuildEvent>>,
) -> Result<String> {
    let deadline = || Instant::now() + CALL_LIMIT;
    let settings = shared.settings(deadline()).await?;
    let bucket = settings.s3_bucket.as_deref().ok_or_else(|| {
        let error = SandboxError::unsupported_field(NAME, "s3_bucket", "is needed for builds, and not set");
        error.with_help("name a bucket by way of which the folder gets to the build service")
    })?;
    let repository = shared.repository(deadline()).await?;
    let packed = pack(shared, request, context, repository).await?;
    let target = repository.image(&packed.tag);
    let turn = shared.images.turn(&target);
    let _turn = turn.lock().await;
    if !request.no_cache && shared.aws.has_image(repository, &packed.tag, deadline()).await? {
        say(sink, format!("{target} is there already\n")).await;
        return Ok(target);
    }
    let key = format!("{}/builds/{}.zip", shared.config.s3_prefix, random_hex(16)?);
    let staged = Staged { shared: shared.clone(), object: Some(shared.aws.bucket(bucket)?.object(&key)) };
    if let Some(object) = &staged.object {
        shared.aws.put_file(object, packed.file.path()).await?;
    }
    let commands = [LOG_IN, "xargs -0 -a argv docker build < context.tar", "xargs -0 -n 1 docker push < images"];
    let input = json!({
        "sourceTypeOverride": "S3",
        "sourceLocationOverride": format!("{bucket}/{key}"),
        "buildspecOverride": build_spec(&commands),
        "environmentVariablesOverride": [
            plain("SANDBOX_REGISTRY", repository.registry()),
            // Lines, not a picture.
            plain("BUILDKIT_PROGRESS", "plain"),
        ],
    });
    let built = Order { input, what: "the build" }.run(shared, sink).await;
    staged.remove().await;
    built?;
    made(shared, repository, &packed.tag).await?;
    Ok(target)
}

async fn pack(
    shared: &Shared,
    request: &BuildRequest,
    context: BuildContext,
    repository: &Repository,
) -> Result<Packed> {
    let arguments = arguments(request, &context.dockerfile, platform(&shared.config))?;
    let name = Path::new(&request.context).file_name().map(|name| name.to_string_lossy().into_owned());
    let readable = readable(&name.unwrap_or_default());
    let (names, repository) = (request.tags.clone(), repository.clone());
    let work = move || {
        let failed = |error: io::Error| SandboxError::io("the archive of a build", error);
        let file = tempfile::NamedTempFile::new().map_err(failed)?;
        let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
        let context = context.changed_at(CHANGED_AT);
        let packing = std::thread::spawn(move || context.pack(sender));
        let mut archive = Archive::new(file.reopen().map_err(failed)?);
        let added = archive.add("context.tar", Pieces { receiver, piece: Bytes::new() });
        let packed = packing.join().unwrap_or_else(|_| Err(SandboxError::internal("packing the context panicked")));
        match added {
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                return Err(SandboxError::exhausted(format!("the context {error}")).with_field("context"));
            }
            added => packed.and(added.map_err(failed))?,
        }
        // What is built depends on how, too.
        archive.add("how", arguments.as_slice()).map_err(failed)?;
        let digest = archive.digest();
        let tag = format!("build-{readable}-{}", &digest[..HASH_DIGITS]).replace("build--", "build-");
        let images: Vec<String> = std::iter::once(&tag)
            .map(|tag| repository.image(tag))
            .chain(names.iter().map(|name| repository.image(&format!("name-{}", super::readable(name)))))
            .collect();
        let tags = images.iter().flat_map(|image| ["-t", image.as_str()]).map(str::to_owned);
        let argv = [lines(tags), arguments, b"-\0".to_vec()].concat();
        archive.add("argv", argv.as_slice()).map_err(failed)?;
        archive.add("images", lines(images.iter().cloned()).as_slice()).map_err(failed)?;
        archive.finish().map_err(failed)?;
        Ok(Packed { file, tag })
    };
    let packed = tokio::task::spawn_blocking(work).await;
    packed.unwrap_or_else(|_| Err(SandboxError::internal("packing the context panicked")))
}

/// Words for `xargs -0`.
fn lines(words: impl Iterator<Item = String>) -> Vec<u8> {
    words.flat_map(|word| [word.into_bytes(), vec![0]]).flatten().collect()
}

/// What the builder is told of a request, but for the names of the image.
fn arguments(request: &BuildRequest, dockerfile: &str, platform: &str) -> Result<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = Vec::new();
    let mut pair = |flag: &str, value: &[u8]| words.extend([flag.as_bytes().to_vec(), value.to_vec()]);
    pair("-f", dockerfile.as_bytes());
    let platform = request.platform.as_deref().unwrap_or(platform);
    pair("--platform", platform.as_bytes());
    for (name, value) in request.args.iter() {
        pair("--build-arg", &[name.as_bytes(), b"=", value.as_bytes()].concat());
    }
    for (name, value) in &request.labels {
        pair("--label", format!("{name}={value}").as_bytes());
    }
    if let Some(target) = &request.target {
        pair("--target", target.as_bytes());
    }
    for (flag, is_set) in [("--no-cache", request.no_cache), ("--pull", request.pull)] {
        if is_set {
            words.push(flag.as_bytes().to_vec());
        }
    }
    if words.iter().any(|word| word.contains(&0)) {
        return Err(SandboxError::invalid_input("args", "must not contain a NUL byte").with_provider(NAME));
    }
    Ok(words.into_iter().flat_map(|word| [word, vec![0]]).flatten().collect())
}

/// A context on its way, as something to read.
struct Pieces {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl io::Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let count = buffer.len().min(self.piece.len());
        buffer[..count].copy_from_slice(&self.piece.split_to(count));
        Ok(count)
    }
}

/// The archive in the bucket, which is removed whatever becomes of the build.
struct Staged {
    shared: Arc<Shared>,
    object: Option<Object>,
}

impl Staged {
    async fn remove(mut self) {
        if let Some(object) = self.object.take() {
            crate::staging::remove(&self.shared, &object).await;
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let (Some(object), Ok(runtime)) = (self.object.take(), tokio::runtime::Handle::try_current()) else { return };
        let shared = self.shared.clone();
        runtime.spawn(async move { crate::staging::remove(&shared, &object).await });
    }
}

/// A build takes no input, and ends when its session is dropped.
struct NoControl;

#[async_trait]
impl SessionControl for NoControl {
    async fn write(&self, _: Bytes) -> Result<()> {
        Err(SandboxError::invalid_state("a build takes no input").with_provider(NAME))
    }

    async fn control(&self, _: ControlRequest) -> Result<ControlReply> {
        Err(SandboxError::unsupported_control(NAME, None))
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::BuildRequest;

    use super::arguments;

    #[test]
    fn what_a_request_says_goes_as_words_and_never_through_a_shell() {
        let mut request = BuildRequest { target: Some("a b".into()), no_cache: true, ..BuildRequest::default() };
        request.args.insert("A", "$(x) \"y\"");
        request.labels.insert("l".into(), "1".into());
        let words = arguments(&request, "Dockerfile", "linux/amd64").unwrap();
        let words: Vec<_> =
            words.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        assert_eq!(
            words,
            [
                "-f",
                "Dockerfile",
                "--platform",
                "linux/amd64",
                "--build-arg",
                "A=$(x) \"y\"",
                "--label",
                "l=1",
                "--target",
                "a b",
                "--no-cache",
                ""
            ]
        );
    }
}
