# frozen_string_literal: true

require "fileutils"
require "logger"
require "open3"
require "pty"
require "stringio"
require "timeout"
require "tmpdir"

RSpec.describe Candle::Hub do
  let(:server) { HubServer.new }
  let(:home) { Dir.mktmpdir("hub") }
  let(:repository) { File.join(home, "hub", "models--acme--tiny") }
  let(:id) { "acme/tiny" }
  let(:config) { %({"model_type": "bert"}) }
  let(:weights) { Random.new(1).bytes(300_000) }
  let(:log) { StringIO.new }

  around do |example|
    names = %w[HF_HOME HF_HUB_CACHE HF_ENDPOINT HF_TOKEN HUGGING_FACE_HUB_TOKEN HF_TOKEN_PATH HF_HUB_OFFLINE
               TRANSFORMERS_OFFLINE HF_HUB_DOWNLOAD_TIMEOUT HF_HUB_ETAG_TIMEOUT HF_HUB_DISABLE_SYMLINKS SSL_CERT_FILE
               HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy]
    saved = names.to_h { |name| [name, ENV.delete(name)] }
    Timeout.timeout(20) { example.run }
  ensure
    saved.each { |name, value| ENV[name] = value }
  end

  before do
    ENV["HF_HOME"] = home
    ENV["HF_ENDPOINT"] = server.url
    server.add(id, "config.json", config)
    server.add(id, "1_Pooling/config.json", "{}")
    server.add(id, "model.safetensors", weights, large: true)
    @logger = Candle.logger
    Candle.logger = Logger.new(log)
  end

  after do
    Candle.logger = @logger
    server.stop
    FileUtils.rm_rf(home)
  end

  def download(file = "model.safetensors", **options)
    described_class.download(id, file, **options)
  end

  # Runs the block in another process; its value is the exit status.
  def in_child
    fork do
      status = begin
        yield ? 0 : 1
      rescue StandardError => e
        warn e.full_message
        2
      end
      exit!(status)
    end
  end

  def wait_for(pid)
    Process.wait2(pid).last
  end

  def seconds
    start = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    yield
    Process.clock_gettime(Process::CLOCK_MONOTONIC) - start
  end

  def incomplete
    Dir.glob(File.join(repository, "blobs", "*.incomplete"))
  end

  describe "the cache" do
    it "has huggingface_hub's layout" do
      path = download("1_Pooling/config.json")
      commit = server.commit(id)
      etag = server.etag(id, "1_Pooling/config.json")
      expect(path).to eq(File.join(repository, "snapshots", commit, "1_Pooling", "config.json"))
      expect(File.readlink(path)).to eq("../../../blobs/#{etag}")
      expect(File.read(File.join(repository, "blobs", etag))).to eq("{}")
      expect(File.read(File.join(repository, "refs", "main"))).to eq(commit)
      expect(File).to exist(File.join(home, "hub", ".locks", "models--acme--tiny", "#{etag}.lock"))
    end

    it "fetches a large file through the store and checks it" do
      expect(File.binread(download)).to eq(weights)
      expect(server.sent(site: :store, verb: "GET").size).to eq(1)
      expect(incomplete).to be_empty
    end

    it "serves a known file after one question to the hub" do
      download
      server.requests.clear
      expect(File.binread(download)).to eq(weights)
      expect(server.requests.map(&:verb)).to eq(["HEAD"])
    end

    it "asks nobody about a full commit hash" do
      download(revision: server.commit(id))
      server.stop
      expect(File.binread(download(revision: server.commit(id)))).to eq(weights)
    end

    it "fetches what a branch newly stands for" do
      old = download("config.json")
      server.move(id)
      server.add(id, "config.json", "{}")
      new = download("config.json")
      expect(File.read(old)).to eq(config)
      expect(File.read(new)).to eq("{}")
      expect(File.read(File.join(repository, "refs", "main"))).to eq(server.commit(id))
    end

    it "finds what Python's huggingface_hub left there" do
      ENV["HF_HUB_OFFLINE"] = "1"
      commit = "0123456789abcdef0123456789abcdef01234567"
      %W[blobs refs snapshots/#{commit}].each { |folder| FileUtils.mkdir_p(File.join(repository, folder)) }
      File.write(File.join(repository, "blobs", "abc"), "from python")
      File.write(File.join(repository, "refs", "main"), commit)
      File.symlink("../../blobs/abc", File.join(repository, "snapshots", commit, "config.json"))
      expect(File.read(download("config.json"))).to eq("from python")
      expect(described_class.cached?(id, "config.json")).to be(true)
      expect(described_class.cached?(id, "tokenizer.json")).to be(false)
      expect(described_class.files(id)).to eq(["config.json"])
    end

    it "does without symlinks" do
      ENV["HF_HUB_DISABLE_SYMLINKS"] = "1"
      path = download
      expect(File.symlink?(path)).to be(false)
      expect(File.binread(path)).to eq(weights)
    end

    it "serves what it has of a GGUF repository when the hub is down, with a warning" do
      server.add(id, "model-Q4_K_M.gguf", File.binread(File.join(TinyModels.path("gguf-decoders/llama"), "model.gguf")),
                 large: true)
      described_class.snapshot(id, files: "*.gguf")
      server.stop
      ENV["HF_HUB_ETAG_TIMEOUT"] = "1"
      llm = Candle::LLM.from_pretrained(id, device: "cpu")
      expect(llm.options["gguf_file"]).to eq("model-Q4_K_M.gguf")
      expect(log.string.scan("using the cached files of #{id}").size).to be_between(1, 2)
    end

    it "is where the call says, with the call's token" do
      elsewhere = File.join(home, "by call")
      expect(download(cache_dir: elsewhere, token: "mine")).to start_with(File.join(elsewhere, "models--acme--tiny"))
      expect(server.requests.map { |request| request.headers["authorization"] }.compact).to include("Bearer mine")
      expect(described_class.cached?(id, "model.safetensors", cache_dir: elsewhere)).to be(true)
      expect(described_class.cached?(id, "model.safetensors")).to be(false)
      expect { described_class.download(id, "config.json", cache_dir: 3) }.to raise_error(ArgumentError, /cache_dir/)
    end

    it "is where HF_HUB_CACHE says" do
      ENV["HF_HUB_CACHE"] = File.join(home, "elsewhere")
      expect(download).to start_with(File.join(home, "elsewhere", "models--acme--tiny"))
    end

    it "is taken through a revision with slashes" do
      expect(File.read(download("config.json", revision: "refs/pr/1"))).to eq(config)
      expect(File.read(File.join(repository, "refs", "refs", "pr", "1"))).to eq(server.commit(id))
    end
  end

  describe ".files and .snapshot" do
    it "lists the repository" do
      expect(described_class.files(id)).to contain_exactly("config.json", "1_Pooling/config.json", "model.safetensors")
    end

    it "fetches all of it into one directory" do
      directory = described_class.snapshot(id)
      expect(directory).to eq(File.join(repository, "snapshots", server.commit(id)))
      expect(File.binread(File.join(directory, "model.safetensors"))).to eq(weights)
      expect(File.read(File.join(directory, "1_Pooling", "config.json"))).to eq("{}")
    end

    it "fetches only what matches" do
      directory = described_class.snapshot(id, files: "*.json")
      names = Dir.glob("**/*.*", base: directory)
      expect(names).to contain_exactly("config.json", "1_Pooling/config.json")
      expect { described_class.snapshot(id, files: ["*.gguf"]) }.to raise_error(Candle::ModelNotFoundError, /\*\.gguf/)
      expect { described_class.snapshot(id, files: ["x.json"]) }.to raise_error(Candle::ModelNotFoundError, /x\.json/)
    end
  end

  describe "refusals" do
    it "names a repository that does not exist" do
      expect { described_class.download("acme/nothing", "config.json") }
        .to raise_error(Candle::ModelNotFoundError, %r{no model acme/nothing.*spelling}m)
      expect { described_class.files("acme/nothing") }.to raise_error(Candle::ModelNotFoundError, %r{acme/nothing})
    end

    it "names a file that does not exist, and remembers it" do
      expect { download("vocab.txt") }.to raise_error(Candle::ModelNotFoundError, %r{acme/tiny has no file vocab.txt})
      expect(File).to exist(File.join(repository, ".no_exist", server.commit(id), "vocab.txt"))
    end

    it "names a revision that does not exist" do
      expect { download(revision: "v9") }.to raise_error(Candle::ModelNotFoundError, /no revision "v9"/)
    end

    it "tells a missing file from a missing repository when the server does not" do
      server.fault("/resolve/", times: 99) { |response| response.headers.delete("X-Error-Code") }
      server.fault("/api/", times: 99) { |response| response.headers.delete("X-Error-Code") }
      expect { download("vocab.txt") }.to raise_error(Candle::ModelNotFoundError, /no file vocab.txt/)
      expect { described_class.download("a/b", "c") }.to raise_error(Candle::ModelNotFoundError, %r{no model a/b})
    end

    [[401, nil], [403, "GatedRepo"], [401, "GatedRepo"]].each do |status, code|
      it "says how to log in after #{status} #{code}" do
        server.fault("/resolve/") do |response|
          response.status = status
          response.headers.replace("Content-Length" => "0")
          response.headers["X-Error-Code"] = code if code
        end
        expect { download }.to raise_error(Candle::DownloadError, /HF_TOKEN/) { |error|
          expect(error.message).to include("acme/tiny")
          expect(error.message).to match(/Accept its conditions on #{server.url}/) if code
        }
      end
    end

    it "refuses names that leave the cache" do
      ["../x", "/etc/passwd", "a/../../b", ""].each do |file|
        expect { download(file) }.to raise_error(Candle::InvalidInputError)
      end
      ["../x", "a/b/c", "", "a b"].each do |name|
        expect { described_class.download(name, "config.json") }.to raise_error(Candle::InvalidInputError)
      end
      expect { download(revision: "../..") }.to raise_error(Candle::InvalidInputError)
      expect { described_class.download(nil, "config.json") }.to raise_error(ArgumentError, /repo_id/)
      expect(server.requests).to be_empty
    end

    it "does not follow a server's etag or commit out of the cache" do
      server.fault("config.json", verb: "HEAD") { |response| response.headers["ETag"] = '"../../../../evil"' }
      expect { download("config.json") }.to raise_error(Candle::DownloadError)
      server.fault("config.json", verb: "HEAD") { |response| response.headers["X-Repo-Commit"] = "../../evil" }
      expect { download("config.json") }.to raise_error(Candle::DownloadError)
      expect(Dir.glob("#{home}/**/*evil*")).to be_empty
    end
  end

  describe "the token" do
    it "goes to the hub but never to the store" do
      ENV["HF_TOKEN"] = "hf_secret"
      download
      expect(server.sent(site: :hub).map do |request|
               request.headers["authorization"]
             end.uniq).to eq(["Bearer hf_secret"])
      expect(server.sent(site: :store).map { |request| request.headers["authorization"] }).to eq([nil])
    end

    it "comes from the token file too" do
      File.write(File.join(home, "token"), "hf_file\n")
      download("config.json")
      expect(server.requests.first.headers["authorization"]).to eq("Bearer hf_file")
    end
  end

  describe "trouble on the way" do
    it "tries again after 503" do
      server.fault("/resolve/", verb: "HEAD", times: 2) { |response| response.status = 503 }
      server.fault("/", site: :store) { |response| response.status = 503 }
      expect(File.binread(download)).to eq(weights)
    end

    it "waits as long as 429 says" do
      server.fault("config.json", verb: "HEAD") do |response|
        response.status = 429
        response.headers["Retry-After"] = "1"
      end
      expect(seconds { download("config.json") }).to be_between(1.0, 2.5)
    end

    it "calls a rate limit one, and says what raises it" do
      server.fault("/resolve/", times: 99) do |response|
        response.status = 429
        response.headers["Retry-After"] = "0"
      end
      expect { download }.to raise_error(Candle::DownloadError, /rate limit.*status 429.*HF_TOKEN/m)
    end

    it "gives up in the end, with the reason" do
      server.fault("/resolve/", times: 99) { |response| response.status = 503 }
      expect { download }.to raise_error(Candle::DownloadError, /model.safetensors of acme.tiny.*503.*tried 5 times/)
      expect(server.requests.size).to eq(5)
    end

    it "resumes where a cut connection ended" do
      server.fault("/", site: :store) { |response| response.cut_at = 150_000 }
      expect(File.binread(download)).to eq(weights)
      starts = server.sent(site: :store).map(&:range_start)
      expect(starts).to eq([nil, 150_000])
    end

    it "resumes what no checksum covers with the same contents only" do
      server.fault("config.json", verb: "HEAD") { |response| response.headers["ETag"] = %("opaque") }
      server.fault("config.json", verb: "GET") do |response|
        response.headers["ETag"] = %("opaque")
        response.cut_at = 5
      end
      expect(File.read(download("config.json"))).to eq(config)
      resumed = server.sent(verb: "GET").reverse.find { |request| request.path.include?("config.json") }
      expect(resumed.headers.values_at("range", "if-range")).to eq(["bytes=5-", %("opaque")])
    end

    it "does not write through a link in the cache" do
      other = File.join(home, "other")
      File.write(other, "mine")
      FileUtils.mkdir_p(File.join(repository, "blobs"))
      File.symlink(other, File.join(repository, "blobs", "#{server.etag(id, "config.json")}.incomplete"))
      expect([File.read(download("config.json")), File.read(other)]).to eq([config, "mine"])
    end

    it "shows no password of HF_ENDPOINT" do
      ENV["HF_ENDPOINT"] = server.url.sub("://", "://me:secret@")
      expect { described_class.download("acme/none", "config.json") }
        .to raise_error(Candle::Error) { |error| expect(error.message).not_to include("secret") }
      server.fault("config.json", times: 9) { |response| response.status = 500 }
      expect { download("config.json") }
        .to raise_error(Candle::DownloadError) { |error| expect(error.message).not_to include("secret") }
    end

    it "follows no redirect without end, and none to a file" do
      server.fault("/resolve/", verb: "GET", times: 99) do |response, request|
        response.status = 302
        response.headers["Location"] = "#{server.url}#{request.path}"
      end
      expect { download("config.json") }.to raise_error(Candle::DownloadError, /redirects without end/)
      expect(server.sent(verb: "GET").size).to eq(10)

      other = File.join(home, "secret")
      File.write(other, "mine")
      server.fault("/resolve/", verb: "GET", times: 99) do |response|
        response.status = 302
        response.headers["Location"] = "file://#{other}"
      end
      expect { download("1_Pooling/config.json") }.to raise_error(Candle::DownloadError)
      expect(Dir.glob("#{repository}/**/*").select { |path| File.file?(path) }).to be_empty
    end

    it "sends the token along to no other origin, wherever a redirect leads" do
      ENV["HF_TOKEN"] = "hf_secret"
      elsewhere = HubServer.new
      elsewhere.add(id, "config.json", config)
      server.fault("/resolve/", verb: "GET") do |response, request|
        response.status = 307
        response.headers["Location"] = "#{elsewhere.url}#{request.path}"
      end
      expect(File.read(download("config.json"))).to eq(config)
      expect(elsewhere.requests.map { |request| request.headers["authorization"] }).to eq([nil])
    ensure
      elsewhere.stop
    end

    it "takes no more of a short answer than such an answer has" do
      server.fault("/api/", times: 9) do |response|
        response.body = "[#{"1," * 40_000_000}1]"
        response.headers.delete("Content-Length")
      end
      expect { described_class.files(id) }.to raise_error(Candle::DownloadError, /more than 67108864 bytes/)
    end

    it "starts over where a server ignores ranges" do
      server.fault("/", site: :store) { |response| response.cut_at = 150_000 }
      server.fault("/", site: :store) do |response|
        response.status = 200
        response.body = weights
        response.headers["Content-Length"] = weights.bytesize.to_s
        response.headers.delete("Content-Range")
      end
      expect(File.binread(download)).to eq(weights)
    end

    it "resumes what an earlier process left, and starts over if that is damaged" do
      partial = File.join(repository, "blobs", "#{server.etag(id, "model.safetensors")}.incomplete")
      FileUtils.mkdir_p(File.dirname(partial))
      File.binwrite(partial, weights.byteslice(0, 1000))
      expect(File.binread(download)).to eq(weights)
      expect(server.sent(site: :store).map(&:range_start)).to eq([1000])

      FileUtils.rm_rf(repository)
      FileUtils.mkdir_p(File.dirname(partial))
      File.binwrite(partial, "x" * 1000)
      expect(File.binread(download)).to eq(weights)
      expect(log.string).to match(/damaged; starting over/)
    end

    it "refuses bytes that do not match the etag" do
      server.fault("/", site: :store) { |response| response.body = response.body.reverse }
      expect { download }.to raise_error(Candle::DownloadError, /checksum/)
      expect(Dir.glob("#{repository}/{blobs,snapshots/*}/*")).to be_empty
      expect(described_class.cached?(id, "model.safetensors")).to be(false)

      server.fault("config.json", verb: "GET") { |response| response.body = response.body.upcase }
      expect { download("config.json") }.to raise_error(Candle::DownloadError, /config.json.*checksum/)
    end

    it "refuses a size other than announced" do
      server.fault("/resolve/", verb: "HEAD") { |response| response.headers["X-Linked-Size"] = "299999" }
      expect { download }.to raise_error(Candle::DownloadError, /announces 299999 bytes and then offers 300000/)
      expect(Dir.glob("#{repository}/{blobs,snapshots/*}/*")).to be_empty
    end

    it "gives up on a server that stands still" do
      ENV["HF_HUB_DOWNLOAD_TIMEOUT"] = "1"
      server.fault("/", site: :store) { |response| response.stall_at = 1 }
      took = seconds { expect(File.binread(download)).to eq(weights) }
      expect(took).to be_between(1.0, 4.0)
      expect(server.sent(site: :store).map(&:range_start)).to eq([nil, 1])
    end

    it "ends within 200 ms of a timeout, whatever the server does" do
      server.fault("/", site: :store) { |response| response.stall_at = 1 }
      took = seconds { expect { Timeout.timeout(0.5) { download } }.to raise_error(Timeout::Error) }
      expect(took).to be_between(0.5, 0.7)
      expect(File.binread(download)).to eq(weights)
    end

    it "lets other threads run, and ends with Thread#kill" do
      server.fault("/", site: :store) { |response| response.stall_at = 1 }
      thread = Thread.new { download }
      sleep(0.01) until incomplete.any?
      took = seconds { thread.kill.join }
      expect(took).to be < 0.2
    end

    it "uses the cache when nobody answers, and says so" do
      path = download("config.json")
      server.stop
      expect(download("config.json")).to eq(path)
      expect(log.string).to match(%r{using the cached files of acme/tiny})
      expect { download("vocab.txt") }.to raise_error(Candle::DownloadError, /vocab.txt.*Check the network/)
    end

    it "names an unusable proxy" do
      ENV["HTTP_PROXY"] = "ftp://nonsense"
      expect { download }.to raise_error(Candle::DownloadError, /HTTP_PROXY/)
      ENV["NO_PROXY"] = "127.0.0.1"
      expect(File.binread(download)).to eq(weights)
    end

    it "names a server that isn't a hub" do
      server.fault("/resolve/", verb: "HEAD") { |response| response.headers.replace("Content-Length" => "0") }
      expect { download("config.json") }.to raise_error(Candle::DownloadError, /HF_ENDPOINT/)
    end
  end

  describe "a certificate that nobody signed" do
    let(:key) { OpenSSL::PKey::EC.generate("prime256v1") }
    let(:certificate) do
      OpenSSL::X509::Certificate.new.tap do |made|
        made.version = 2
        made.serial = 1
        made.subject = made.issuer = OpenSSL::X509::Name.parse("/CN=127.0.0.1")
        made.public_key = key
        made.not_before = Time.now - 60
        made.not_after = Time.now + 3600
        made.add_extension(OpenSSL::X509::ExtensionFactory.new.create_extension("subjectAltName", "IP:127.0.0.1"))
        made.sign(key, "SHA256")
      end
    end
    let(:tunnel) { TlsTunnel.new(key, certificate, URI(server.url).port) }

    before { ENV["HF_ENDPOINT"] = "https://127.0.0.1:#{tunnel.port}" }
    after { tunnel.stop }

    it "is told at once, with what makes it a trusted one" do
      told = /certificate.*SSL_CERT_FILE/m
      took = seconds { expect { download("config.json") }.to raise_error(Candle::DownloadError, told) }
      expect([tunnel.connections, took]).to match([1, be < 2])
      expect(server.requests).to be_empty
    end

    it "is trusted where SSL_CERT_FILE names it" do
      ENV["SSL_CERT_FILE"] = File.join(home, "own.pem")
      File.write(ENV.fetch("SSL_CERT_FILE"), certificate.to_pem)
      expect(File.read(download("config.json"))).to eq(config)
      File.write(ENV.fetch("SSL_CERT_FILE"), "nothing")
      expect { download("1_Pooling/config.json") }.to raise_error(Candle::Error, /SSL_CERT_FILE.*no certificate/)
    end
  end

  describe "the progress bar" do
    let(:weights) { Random.new(1).bytes(2 << 20) }
    let(:script) { 'require "candle"; Candle::Hub.download("acme/tiny", "model.safetensors")' }
    let(:command) { [RbConfig.ruby, *$LOAD_PATH.flat_map { |path| ["-I", path] }, "-e", script] }

    it "is drawn on a terminal" do
      terminal, slave = PTY.open
      expect(system({ "TERM" => "xterm" }, *command, err: slave)).to be(true)
      slave.close
      drawn = terminal.readpartial(100_000)
      expect(drawn).to include("model.safetensors").and include("2.00 MiB/2.00 MiB")
    end

    it "is silent anywhere else" do
      _, errors, status = Open3.capture3(*command)
      expect(status).to be_success
      expect(errors).to eq("")
    end
  end

  describe "offline" do
    it "takes everything from the cache and asks nobody" do
      path = download("config.json")
      server.requests.clear
      ENV["HF_HUB_OFFLINE"] = "1"
      expect(download("config.json")).to eq(path)
      expect { download }.to raise_error(Candle::OfflineError, /model.safetensors of acme.tiny.*HF_HUB_OFFLINE/)
      expect { described_class.files("acme/other") }.to raise_error(Candle::OfflineError)
      expect(server.requests).to be_empty
    end
  end

  describe "a full disk" do
    it "is told by size limit, and leaves nothing behind" do
      pid = in_child do
        trap("XFSZ", "IGNORE")
        Process.setrlimit(:FSIZE, 100_000)
        download
        false
      rescue Candle::DownloadError => e
        e.message.match?(/may not grow further.*HF_HOME/)
      end
      expect(wait_for(pid).exitstatus).to eq(0)
      expect(Dir.glob("#{repository}/{blobs,snapshots/*}/*")).to be_empty
      expect(File.binread(download)).to eq(weights)
    end

    it "is told before the download where the size is known" do
      server.fault("/resolve/", verb: "HEAD") { |response| response.headers["X-Linked-Size"] = (1 << 60).to_s }
      expect { download }.to raise_error(Candle::DownloadError, /#{home}.* left, but 1048576.0 TiB are needed.*HF_HOME/)
      expect(server.sent(site: :store)).to be_empty
    end

    small_disk = Dir.mktmpdir("small-disk")
    if Process.uid.zero? && system("mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", small_disk, err: File::NULL)
      owner = Process.pid
      at_exit { system("umount", small_disk) && Dir.rmdir(small_disk) if Process.pid == owner }

      it "is told on a real one, where the size is not known" do
        ENV["HF_HOME"] = small_disk
        server.fault("/resolve/", verb: "HEAD") { |response| response.headers.delete("X-Linked-Size") }
        server.fault("/", site: :store) { |response| response.headers.delete("Content-Length") }
        lack = /the disk of #{small_disk}.* left, but .* are needed.*HF_HOME/
        expect { download }.to raise_error(Candle::DownloadError, lack)
        expect(Dir.glob("#{small_disk}/hub/models--*/{blobs,snapshots/*}/*")).to be_empty
      end
    else
      Dir.rmdir(small_disk)
    end
  end

  describe "several processes" do
    it "end well when they download the same at once, and fetch it once" do
      server.fault("/", site: :store) { |response| response.drip = 0.002 }
      reader, writer = IO.pipe
      pids = Array.new(2) do
        in_child do
          writer.close
          reader.read
          File.binread(download) == weights
        end
      end
      writer.close
      expect(pids.map { |pid| wait_for(pid).exitstatus }).to eq([0, 0])
      expect(server.sent(site: :store).size).to eq(1)
    end

    it "end well in threads too" do
      server.fault("/", site: :store) { |response| response.drip = 0.001 }
      paths = Array.new(4) { Thread.new { download } }.map(&:value)
      expect(paths.uniq.size).to eq(1)
      expect(File.binread(paths.first)).to eq(weights)
      expect(server.sent(site: :store).size).to eq(1)
    end

    it "may be killed: the next one completes the file" do
      server.fault("/", site: :store) { |response| response.drip = 0.01 }
      pid = in_child { download }
      sleep(0.01) until incomplete.any? { |path| File.size(path) > 10_000 }
      Process.kill(:KILL, pid)
      expect(wait_for(pid)).to be_signaled
      expect(described_class.cached?(id, "model.safetensors")).to be(false)
      expect(File.binread(download)).to eq(weights)
      expect(server.sent(site: :store).last.range_start).to be > 10_000
    end
  end
end
