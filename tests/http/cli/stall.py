"""A proxy that forwards requests to a server, except the tensor bytes of an update: it reads and holds them.
Prints its port. Usage: stall.py SERVER_PORT"""

import socket
import sys
import threading


def pump(source, target, stalls):
    try:
        while data := source.recv(65536):
            if stalls and b"POST /v1/update_weights?" in data:
                threading.Event().wait()
            target.sendall(data)
    except OSError:
        pass
    for s in source, target:
        try:
            s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def main():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
            threading.Thread(target=pump, args=(client, server, True), daemon=True).start()
            threading.Thread(target=pump, args=(server, client, False), daemon=True).start()


if __name__ == "__main__":
    main()
