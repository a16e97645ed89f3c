import errno, socket, sys, threading
target, ports = sys.argv[1], [int(port) for port in sys.argv[2:]]
def copy(source, drain):
    try:
        while True:
            heard = source.recv(65536)
            if not heard:
                break
            drain.sendall(heard)
        drain.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, drain):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
def relay(near, port):
    with near:
        try:
            far = socket.create_connection((target, port), 30)
        except OSError:
            return
        with far:
            far.settimeout(None)
            back = threading.Thread(target=copy, args=(far, near), daemon=True)
            back.start()
            copy(near, far)
            back.join()
def serve(listener, port):
    while True:
        near, _ = listener.accept()
        threading.Thread(target=relay, args=(near, port), daemon=True).start()
listeners = []
for port in ports:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            listener = socket.socket(family)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(128)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                print(port, file=sys.stderr)
                sys.exit(98)
            # Not every sandbox has both kinds of addresses.
            if family == socket.AF_INET:
                raise
            continue
        listeners.append((listener, port))
print("ready", flush=True)
for listener, port in listeners:
    threading.Thread(target=serve, args=(listener, port), daemon=True).start()
threading.Event().wait()
