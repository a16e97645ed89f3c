import os, socket, sys, threading
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10)
peer.settimeout(None)
os.write(1, b"connected\n")
def send():
    given = sys.stdin.buffer
    while True:
        head = given.read(4)
        size = int.from_bytes(head, "big") if len(head) == 4 else 0
        if size == 0:
            break
        peer.sendall(given.read(size))
    peer.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
while True:
    heard = peer.recv(65536)
    if not heard:
        break
    while heard:
        heard = heard[os.write(1, heard):]
os._exit(0)
