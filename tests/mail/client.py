"""A mail client of Python's: MODE PORT ROOT. It logs in, does what its protocol is for, and prints what it hears. ROOT vouches for
servers of TLS at www.example.org."""
import imaplib
import poplib
import smtplib
import ssl
import sys

mode, port, root = sys.argv[1], int(sys.argv[2]), sys.argv[3]
context = ssl.create_default_context(cafile=root)
context.check_hostname = False

if mode == "imap":
    client = imaplib.IMAP4("127.0.0.1", port, timeout=30)
    client.starttls(context)
    print(client.login("user", 'pa"ss\\'))
    print(client.select("INBOX"))
    client.logout()
elif mode == "pop3":
    client = poplib.POP3("127.0.0.1", port, timeout=30)
    print(client.capa())
    print(client.apop("user", "secret"))
    print(client.stat())
    client.quit()
elif mode == "smtp":
    client = smtplib.SMTP("127.0.0.1", port, local_hostname="client.example", timeout=30)
    client.starttls(context=context)
    client.login("us=er", "secret")
    print(client.sendmail("a@example.org", ["b@example.org"], "Subject: x\r\n\r\nbody\r\n"))
    client.quit()
