//! The text that runs a command inside: a folder for each, made once, so that the same request again joins the command
//! and never starts it twice.
//!
//! In the folder: `run`, which keeps watch; `cmd`, which becomes the command; `out` and `err`, byte for byte; `rc`, written
//! last, with how it ended. Every process of the command carries the folder's name in its environment, which is how the
//! whole tree is found when it must end.

use std::{fmt::Write, time::Duration};

use sandbox_core::{ByteString, ExecCommand, ExecRequest, StdinSource};

use crate::script::{quote, word};

/// The variable by which processes of a command are known.
const MARK: &str = "SANDBOX_JOB";

/// A script beyond this is a file of its own: the kernel takes 128 KiB as one argument.
const LONG_SCRIPT_BYTES: usize = 120_000;

/// What goes with the request itself; more of it is uploaded first.
const INLINE_BYTES: usize = 48 << 10;

/// Output of one stream in one answer.
pub(crate) const CHUNK_BYTES: u64 = 1 << 20;

/// A command as files of its folder.
pub(crate) struct Job {
    pub(crate) id: String,
    /// The folder of all commands, and this one's.
    root: String,
    folder: String,
    run: String,
    cmd: Vec<u8>,
    /// A script that is too long for an argument.
    script: Option<Vec<u8>>,
    stdin: Option<bytes::Bytes>,
    is_inline: bool,
}

/// The name of a folder for an id, which is anything printable. No such name begins with another one: processes are found
/// by it.
pub(crate) fn folder_name(kind: &str, id: &str) -> String {
    format!("{kind}-{}-", id.bytes().map(|byte| format!("{byte:02x}")).collect::<String>())
}

fn seconds(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64())
}

impl Job {
    /// `id` is of letters, digits and `-`. `workdir`: the sandbox's own.
    pub(crate) fn new(id: String, root: &str, workdir: Option<&str>, request: &ExecRequest) -> Self {
        let folder = format!("{root}/{id}");
        let mut script = None;
        let cmd = cmd(&id, root, workdir, request, "", &mut script);
        let run = run(&id, root, request);
        let stdin = match &request.stdin {
            StdinSource::Bytes(bytes) => Some(bytes.clone()),
            _ => None,
        };
        let is_inline =
            script.is_none() && stdin.is_none() && cmd.len() <= INLINE_BYTES && std::str::from_utf8(&cmd).is_ok();
        Self { id, root: root.to_owned(), folder, run, cmd, script, stdin, is_inline }
    }

    /// What runs in a terminal. It says `start-of-` and the nonce before it starts.
    pub(crate) fn terminal(
        id: String,
        root: &str,
        workdir: Option<String>,
        request: &ExecRequest,
        nonce: &str,
    ) -> Self {
        let mut job = Self::new(id, root, workdir.as_deref(), request);
        // In two parts, so that the echo of a line never is the mark.
        let last = format!("printf '%s%s' start-of- {nonce}\n");
        job.script = None;
        job.cmd = cmd(&job.id, root, workdir.as_deref(), request, &last, &mut job.script);
        job
    }

    /// Makes the folder of a terminal's command. It may run twice.
    pub(crate) fn prepare(&self) -> String {
        let Self { root, folder, .. } = self;
        let mut text = format!("umask 077\nJ='{folder}'\nmkdir -p \"$J\" && chmod 711 '{root}' \"$J\"\n");
        if self.is_inline {
            let cmd = String::from_utf8_lossy(&self.cmd);
            let _ = writeln!(text, "cat > \"$J/cmd\" <<'CMD{}'\n{cmd}\nCMD{}", self.id, self.id);
        } else {
            text += "for f in cmd script; do [ ! -e \"$J.$f\" ] || mv \"$J.$f\" \"$J/$f\"; done\n";
            text += "[ ! -e \"$J/script\" ] || chmod 644 \"$J/script\"\n";
        }
        text + "chmod 644 \"$J/cmd\"\n"
    }

    /// What a shell at a prompt is told, to become the command.
    pub(crate) fn become_line(&self) -> String {
        format!(" exec sh '{}/cmd'\n", self.folder)
    }

    /// Files to upload before the launch: path and contents.
    pub(crate) fn uploads(&self) -> Vec<(String, bytes::Bytes)> {
        if self.is_inline {
            return Vec::new();
        }
        let mut uploads = vec![(format!("{}.cmd", self.folder), self.cmd.clone().into())];
        uploads.extend(self.script.iter().map(|script| (format!("{}.script", self.folder), script.clone().into())));
        uploads.extend(self.stdin.iter().map(|stdin| (format!("{}.in", self.folder), stdin.clone())));
        uploads
    }

    /// A command that was launched before.
    pub(crate) fn known(id: String, root: &str) -> Self {
        let folder = format!("{root}/{id}");
        let (run, cmd) = (String::new(), Vec::new());
        Self { id, root: root.to_owned(), folder, run, cmd, script: None, stdin: None, is_inline: true }
    }

    /// Starts the command unless it was started before. `over`: commands whose output was delivered; `first`: lines that
    /// run only if it was not, with `J` as its folder.
    pub(crate) fn launch(&self, over: &[String], first: &str) -> String {
        let Self { root, folder, .. } = self;
        let mut text =
            format!("umask 077\nJ='{folder}'\n[ -d '{root}' ] || mkdir -p '{root}'\nchmod 711 '{root}' 2>/dev/null\n");
        for id in over {
            let _ = writeln!(text, "{}", forget(root, id));
        }
        text += "if mkdir \"$J\" 2>/dev/null; then\nchmod 711 \"$J\"\n: > \"$J/out\"; : > \"$J/err\"\n";
        text += first;
        let _ = writeln!(text, "cat > \"$J/run\" <<'RUN{}'\n{}\nRUN{}", self.id, self.run, self.id);
        if self.is_inline {
            let cmd = String::from_utf8_lossy(&self.cmd);
            let _ = writeln!(text, "cat > \"$J/cmd\" <<'CMD{}'\n{cmd}\nCMD{}", self.id, self.id);
        } else {
            text += "for f in cmd script in; do [ ! -e \"$J.$f\" ] || mv \"$J.$f\" \"$J/$f\"; done\n";
            text += "[ ! -e \"$J/script\" ] || chmod 644 \"$J/script\"\n";
        }
        text += "chmod 644 \"$J/cmd\"\ns=; command -v setsid >/dev/null 2>&1 && s=setsid\n\
                 $s sh \"$J/run\" </dev/null >/dev/null 2>\"$J/note\" &\nfi\n";
        text
    }

    /// Waits for news of the command and tells them; see [`crate::news`]. It may be asked any number of times.
    pub(crate) fn poll(&self, mark: &str, stdout: u64, stderr: u64, wait: Duration) -> String {
        let folder = &self.folder;
        let wait_cs = wait.as_millis() / 10;
        format!(
            "J='{folder}'; o={stdout}; e={stderr}; n=0; t=1\n\
             [ -d \"$J\" ] && [ ! -e \"$J/done\" ] || {{ echo '{mark} gone'; exit 0; }}\n\
             while :; do\n\
             r=; [ -s \"$J/rc\" ] && r=$(cat \"$J/rc\")\n\
             [ -n \"$r\" ] && break\n\
             if [ $o = 0 ]; then [ -s \"$J/out\" ] && break; else [ \"$(wc -c < \"$J/out\")\" -gt $o ] && break; fi\n\
             if [ $e = 0 ]; then [ -s \"$J/err\" ] && break; else [ \"$(wc -c < \"$J/err\")\" -gt $e ] && break; fi\n\
             [ $n -ge {wait_cs} ] && break\n\
             [ $n -gt 1000 ] && [ ! -e \"$J/sup\" ] && break\n\
             if [ $n -lt 10 ]; then t=1; z=0.01; elif [ $n -lt 100 ]; then t=5; z=0.05; else t=15; z=0.15; fi\n\
             sleep $z 2>/dev/null || sleep 1\n\
             n=$((n+t))\n\
             done\n\
             so=$(wc -c < \"$J/out\"); se=$(wc -c < \"$J/err\")\n\
             s=; [ -e \"$J/sup\" ] && s=up\n\
             echo \"{mark} ${{so:-0}} ${{se:-0}} ${{s:-new}} $r\"\n\
             [ \"${{so:-0}}\" -gt $o ] && tail -c +$((o+1)) \"$J/out\" | head -c {CHUNK_BYTES} | base64\n\
             echo '{mark} err'\n\
             [ \"${{se:-0}}\" -gt $e ] && tail -c +$((e+1)) \"$J/err\" | head -c {CHUNK_BYTES} | base64\n\
             echo '{mark} end'\n"
        )
    }

    /// Ends the whole tree, and a command that was not started yet never starts.
    pub(crate) fn kill(&self, is_wanted: Wanted) -> String {
        let (folder, root, id) = (&self.folder, &self.root, &self.id);
        let mut text = format!("J='{folder}'; I='{id}'\nmkdir -p '{root}'\n");
        text += "mkdir \"$J\" 2>/dev/null && : > \"$J/done\"\n";
        let _ = write!(text, "{TREE}");
        text += "[ -e \"$J/rc\" ] || { [ -s \"$J/pid\" ] && kill -9 -$(cat \"$J/pid\") 2>/dev/null; }\nkill_tree\n";
        if is_wanted == Wanted::Nothing {
            let _ = writeln!(text, "{}", forget(root, id));
            let _ = writeln!(text, "rm -f '{folder}'.cmd '{folder}'.script '{folder}'.in");
        }
        text + "exit 0\n"
    }

    /// Sends a signal to every process of the command, and of what it left. After a kill, exit 5: something is left.
    pub(crate) fn signal_tree(&self, signal: i32) -> String {
        let (folder, id) = (&self.folder, &self.id);
        let mut text = format!("J='{folder}'; I='{id}'; n=0\n{TREE}");
        text += "while [ ! -s \"$J/pid\" ] && [ ! -e \"$J/rc\" ] && [ $n -lt 100 ]; do sleep 0.02; n=$((n+1)); done\n";
        if signal == 9 {
            text += "[ -e \"$J/rc\" ] || kill -9 -$(cat \"$J/pid\") 2>/dev/null\nkill_tree\n";
            text += "[ -z \"$(tree)\" ] || exit 5\n";
        } else {
            let _ = writeln!(text, "p=$(tree); [ -z \"$p\" ] || kill -{signal} $p 2>/dev/null");
        }
        text + "exit 0\n"
    }

    /// Sends a signal to the group of the command. Exit 3: it is over.
    pub(crate) fn signal(&self, signal: i32) -> String {
        let folder = &self.folder;
        format!(
            "J='{folder}'\n[ -e \"$J/rc\" ] && exit 3\nn=0\n\
             while [ ! -s \"$J/pid\" ] && [ $n -lt 100 ]; do sleep 0.02; n=$((n+1)); done\n\
             kill -{signal} -$(cat \"$J/pid\") 2>/dev/null || exit 3\nexit 0\n"
        )
    }

    /// Adds a part of the input. The same number again is the same part. Exit 3: it is over; 4: not taken yet.
    pub(crate) fn input(&self, number: u64, base64: &str) -> String {
        let folder = &self.folder;
        // So many parts may wait for the command.
        let before = number.saturating_sub(8);
        format!(
            "umask 077\nJ='{folder}'\n[ -e \"$J/rc\" ] && exit 3\n\
             if [ {number} -ge 8 ]; then n=0; while [ -e \"$J/in.{before}\" ]; do\n\
             [ -e \"$J/rc\" ] && exit 3\n[ $n -ge 300 ] && exit 4; sleep 0.05; n=$((n+1)); done; fi\n\
             [ -e \"$J/taken.{number}\" ] && exit 0\n\
             printf %s '{base64}' | base64 -d > \"$J/new.{number}\" && : > \"$J/taken.{number}\" && \
             mv \"$J/new.{number}\" \"$J/in.{number}\"\n"
        )
    }

    /// Says that no more input will come.
    pub(crate) fn close_input(&self) -> String {
        format!(": > '{}/in.end'\n", self.folder)
    }

    /// The file of a stream: `out` or `err`.
    pub(crate) fn output(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    /// Lets go of the output.
    pub(crate) fn forget(&self) -> String {
        forget(&self.root, &self.id)
    }
}

/// Whether anybody waits for how it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Exit,
    Nothing,
}

/// Removes what a command left; its folder stays, so that it never runs again.
fn forget(root: &str, id: &str) -> String {
    format!(
        "if [ -d '{root}/{id}' ]; then : > '{root}/{id}/done'; for f in '{root}/{id}'/[!d]*; do rm -f \"$f\"; done; fi"
    )
}

/// Finds and kills every process of a command. `I` is its id.
const TREE: &str = "tree() { grep -ls \"SANDBOX_JOB=$I\" /proc/[0-9]*/environ 2>/dev/null | tr -dc '0-9\\n'; }\n\
    kill_tree() { i=0; while [ $i -lt 60 ]; do p=$(tree); [ -n \"$p\" ] || break; kill -9 $p 2>/dev/null\n\
    i=$((i+1)); [ $i -gt 3 ] && sleep 0.05; done; }\n";

/// The text that keeps watch.
fn run(id: &str, root: &str, request: &ExecRequest) -> String {
    let grace = request.kill_grace();
    let grace_ticks = (grace.as_secs_f64() * 10.0).ceil() as u64;
    let mut text = format!("J='{root}/{id}'; I='{id}'\necho $$ > \"$J/sup\"\n{TREE}");
    text += "end_by() { echo \"$1\" > \"$J/why.t\"; mv \"$J/why.t\" \"$J/why\"\n";
    if grace_ticks > 0 {
        let _ = write!(
            text,
            "p=$(tree); [ -n \"$p\" ] && kill -15 $p; k=0\n\
             while [ $k -lt {grace_ticks} ] && [ -n \"$(tree)\" ]; do sleep 0.1; k=$((k+1)); done\n"
        );
    }
    text += "[ -s \"$J/pid\" ] && [ ! -e \"$J/over\" ] && kill -9 -$(cat \"$J/pid\")\nkill_tree; }\nw=\n";
    if let Some(limit) = request.timeout() {
        let limit = seconds(limit);
        let _ = write!(
            text,
            "( trap 'kill $S; exit' TERM; sleep {limit} & S=$!; wait $S; end_by timeout ) >/dev/null 2>&1 &\nw=\"$w $!\"\n"
        );
    }
    if let Some(limit) = request.idle_timeout() {
        let ticks = (limit.as_secs_f64() * 5.0).ceil().max(1.0) as u64;
        let _ = write!(
            text,
            "( trap exit TERM; l=; n=0; while :; do sleep 0.2; c=$(wc -c < \"$J/out\"; wc -c < \"$J/err\")\n\
             if [ \"$c\" != \"$l\" ]; then l=$c; n=0; else n=$((n+1)); fi\n\
             [ $n -ge {ticks} ] && {{ end_by idle; exit; }}; done ) >/dev/null 2>&1 &\nw=\"$w $!\"\n"
        );
    }
    let input = match &request.stdin {
        StdinSource::Bytes(_) => "\"$J/in\"",
        StdinSource::Stream => {
            text += "mkfifo \"$J/pipe\"\n\
                     ( n=0; while :; do if [ -e \"$J/in.$n\" ]; then cat \"$J/in.$n\" || exit; rm -f \"$J/in.$n\"; n=$((n+1))\n\
                     elif [ -e \"$J/in.end\" ] || [ -e \"$J/over\" ]; then exit; else sleep 0.03; fi; done ) > \"$J/pipe\" 2>/dev/null &\n\
                     w=\"$w $!\"\n";
            "\"$J/pipe\""
        }
        _ => "/dev/null",
    };
    let _ = write!(
        text,
        "s=; command -v setsid >/dev/null 2>&1 && s=setsid\n\
         ( exec $s sh \"$J/cmd\" < {input} > \"$J/out\" 2> \"$J/err\" )\n\
         c=$?; k=exited\n\
         : > \"$J/over\"\n"
    );
    // A child that has not come to its redirection yet holds the output for a moment only.
    // A shell tells death by a signal in words only, and says nothing of an interrupt or a closed pipe.
    text += "[ $c -gt 128 ] && { [ -s \"$J/note\" ] || [ $c = 130 ] || [ $c = 141 ]; } && k=signalled\n\
             exec 2>/dev/null\n\
             if [ -e \"$J/why\" ]; then wait $w; k=$(cat \"$J/why\"); else [ -n \"$w\" ] && kill $w; fi\n\
             [ -s \"$J/fail\" ] && k=$(cat \"$J/fail\")\n\
             for t in 1 2 3 4; do h=0\n\
             for p in $(tree); do ls -l /proc/$p/fd | grep -Eq \"$I/(out|err)\\$\" && h=1; done\n\
             [ $h = 0 ] && break; [ $t = 4 ] || sleep 0.05; done\n\
             echo \"$k $c $h\" > \"$J/rc.t\"; mv \"$J/rc.t\" \"$J/rc\"\n";
    text
}

/// Where a variable is set: the service's own way cannot carry every name and value.
pub(crate) fn export(text: &mut Vec<u8>, odd: &mut Vec<Vec<u8>>, name: &str, value: &ByteString) {
    if crate::options::is_plain_name(name) {
        let made = raw(value.as_bytes());
        text.extend_from_slice(format!("export {name}=").as_bytes());
        text.extend_from_slice(&made);
        text.push(b'\n');
    } else {
        odd.push(raw(&[name.as_bytes(), b"=", value.as_bytes()].concat()));
    }
}

/// Quoted bytes: a file, unlike a request, may hold any.
fn raw(bytes: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for byte in bytes {
        match byte {
            b'\'' => quoted.extend_from_slice(b"'\\''"),
            other => quoted.push(*other),
        }
    }
    quoted.push(b'\'');
    quoted
}

/// The text that becomes the command. Its own variables start with `sb_`: those of the environment pass through it.
fn cmd(
    id: &str,
    root: &str,
    workdir: Option<&str>,
    request: &ExecRequest,
    last: &str,
    long: &mut Option<Vec<u8>>,
) -> Vec<u8> {
    let mut text = format!(
        "sb_j='{root}/{id}'\necho $$ > \"$sb_j/pid\"\nfail() {{ echo \"$1\" > \"$sb_j/fail\"; exit 125; }}\n\
         unset BASH_ENV ENV CDPATH\nset -f\n"
    )
    .into_bytes();
    let mut add = |bytes: &[u8]| text.extend_from_slice(bytes);
    if let Some(workdir) = workdir {
        add(format!("cd -- {} 2>/dev/null || fail cwd_missing\n", quote(workdir)).as_bytes());
    }
    add(format!("[ ! -r '{root}/env' ] || . '{root}/env'\n").as_bytes());
    if let Some(cwd) = &request.cwd {
        add(&[b"sb_c=", raw(cwd.as_bytes()).as_slice(), CWD.as_bytes()].concat());
    }
    add(b"sb_w=\n");
    if let Some(user) = &request.user {
        add(format!("sb_u={}\n{SWITCH}", quote(user)).as_bytes());
    }
    let mut odd = Vec::new();
    let mut variables = Vec::new();
    for (name, value) in request.env.iter() {
        export(&mut variables, &mut odd, name, value);
    }
    if !odd.is_empty() {
        add(b"sb_w=\"$sb_w $(command -v env)\"\n");
    }
    // The line that becomes the command.
    let mut line = b"exec $sb_w".to_vec();
    for pair in &odd {
        line.push(b' ');
        line.extend_from_slice(pair);
    }
    match &request.command {
        ExecCommand::Shell { script, shell } => {
            // The shell is that of the sandbox, whatever path the command gets.
            let names = shell.as_deref().map_or_else(|| "bash sh".to_owned(), quote);
            add(format!("for sb_n in {names}; do\n{SHELL}").as_bytes());
            add(&variables);
            line.extend_from_slice(b" \"$sb_b\"");
            if script.len() > LONG_SCRIPT_BYTES {
                *long = Some(script.as_bytes().to_vec());
                line.extend_from_slice(b" \"$sb_j/script\"");
            } else {
                line.extend_from_slice(b" -c ");
                line.extend_from_slice(&raw(script.as_bytes()));
            }
        }
        ExecCommand::Argv(argv) => {
            add(&variables);
            let program = argv.first().map(ByteString::as_bytes).unwrap_or_default();
            add(&[b"sb_x=", raw(program).as_slice(), FIND.as_bytes()].concat());
            for argument in argv {
                line.push(b' ');
                line.extend_from_slice(&raw(argument.as_bytes()));
            }
        }
        _ => line.extend_from_slice(b" false"),
    }
    add(format!("{last}export {MARK}={id}\n").as_bytes());
    add(&line);
    add(b"\n");
    text
}

/// Goes to the working directory.
const CWD: &str = "\n[ -e \"$sb_c\" ] || fail cwd_missing\n[ -d \"$sb_c\" ] || fail cwd_no_folder\n\
    cd -- \"$sb_c\" 2>/dev/null || fail cwd_no_access\n";

/// Looks for a shell.
const SHELL: &str = "sb_b=$(command -v \"$sb_n\" 2>/dev/null) && [ -x \"$sb_b\" ] && break; sb_b=; done\n\
    [ -n \"$sb_b\" ] || fail no_shell\n";

/// Looks for the program, as the kernel or a shell would.
const FIND: &str = "\ncase $sb_x in\n\
    */*) [ -e \"$sb_x\" ] || fail not_found; [ -d \"$sb_x\" ] && fail not_executable; [ -x \"$sb_x\" ] || fail not_executable;;\n\
    *) sb_f=; IFS=:; for sb_d in $PATH; do [ -f \"${sb_d:-.}/$sb_x\" ] && [ -x \"${sb_d:-.}/$sb_x\" ] && { sb_f=1; break; }; done\n\
    unset IFS; [ -n \"$sb_f\" ] || fail not_found;;\nesac\n";

/// Becomes another user, where that is possible; never silently someone else.
const SWITCH: &str = "sb_n=${sb_u%%:*}; sb_g=; case $sb_u in *:*) sb_g=${sb_u#*:};; esac\n\
    case $sb_n in *[!0-9]*|'') sb_i=$(id -u \"$sb_n\" 2>/dev/null) || fail user_unknown\n\
    sb_d=$(id -g \"$sb_n\"); sb_l=--init-groups\n\
    sb_h=$(sed -n \"s/^$sb_n:[^:]*:[^:]*:[^:]*:[^:]*:\\([^:]*\\):.*/\\1/p\" /etc/passwd);;\n\
    *) sb_i=$sb_n; sb_d=$sb_n; sb_l=--clear-groups; sb_h=/;; esac\n\
    case $sb_g in '') ;; *[!0-9]*) sb_d=$(sed -n \"s/^$sb_g:[^:]*:\\([0-9]*\\):.*/\\1/p\" /etc/group)\n\
    [ -n \"$sb_d\" ] || fail user_unknown; sb_l=--clear-groups;; *) sb_d=$sb_g; sb_l=--clear-groups;; esac\n\
    if [ \"$sb_i\" = \"$(id -u)\" ] && { [ -z \"$sb_g\" ] || [ \"$sb_d\" = \"$(id -g)\" ]; }; then :\n\
    elif [ \"$(id -u)\" = 0 ] && command -v setpriv >/dev/null 2>&1; then\n\
    sb_w=\"$(command -v setpriv) --reuid=$sb_i --regid=$sb_d $sb_l\"; HOME=$sb_h; export HOME\n\
    else fail user_refused; fi\n";

/// A word for a path in a request.
pub(crate) fn path_word(path: &ByteString) -> (String, String) {
    let made = word("p", path.as_bytes());
    (made.before, made.word)
}
