# frozen_string_literal: true

require "digest"
require "json"
require "socket"
require "uri"

# A hub on 127.0.0.1 that speaks the real one's protocol: small files come from the hub itself, large ones by a
# redirect to a store of another origin. Faults are injected per request.
class HubServer
  Request = Struct.new(:site, :verb, :path, :headers, keyword_init: true) do
    def range_start
      headers.fetch("range", "")[/\Abytes=(\d+)-/, 1]&.to_i
    end
  end

  # What goes over the wire. `cut_at` closes the connection after so many bytes of the body, `stall_at` stops sending
  # there, `drip` pauses after each kilobyte.
  Response = Struct.new(:status, :headers, :body, :cut_at, :stall_at, :drip, keyword_init: true)

  StoredFile = Struct.new(:content, :large, keyword_init: true) do
    def etag
      large ? Digest::SHA256.hexdigest(content) : Digest::SHA1.hexdigest("blob #{content.bytesize}\0#{content}")
    end
  end

  Fault = Struct.new(:site, :verb, :path, :times, :change, keyword_init: true) do
    def meets?(request)
      times.positive? && site == request.site && [nil, request.verb].include?(verb) && request.path.include?(path)
    end
  end

  attr_reader :requests

  def initialize
    @repositories = Hash.new { |hash, id| hash[id] = {} }
    @commits = Hash.new { |hash, id| hash[id] = Digest::SHA1.hexdigest(id) }
    @faults = []
    @requests = []
    @mutex = Mutex.new
    @sockets = { hub: TCPServer.new("127.0.0.1", 0), store: TCPServer.new("127.0.0.1", 0) }
    @threads = @sockets.map { |site, socket| Thread.new { serve(site, socket) } }
  end

  def url(site = :hub)
    "http://127.0.0.1:#{@sockets.fetch(site).addr[1]}"
  end

  def add(id, name, content, large: false)
    @repositories[id][name] = StoredFile.new(content: content.b, large:)
  end

  def commit(id)
    @commits[id]
  end

  # A push: the branch stands for another commit from now on.
  def move(id)
    @commits[id] = Digest::SHA1.hexdigest("#{@commits[id]}+")
  end

  def etag(id, name)
    @repositories.fetch(id).fetch(name).etag
  end

  # Changes the responses to the next `times` requests whose path holds `path`.
  def fault(path, site: :hub, verb: nil, times: 1, &change)
    @faults << Fault.new(site:, verb:, path:, times:, change:)
  end

  def sent(site: nil, verb: nil)
    @mutex.synchronize { @requests.select { |r| [nil, r.site].include?(site) && [nil, r.verb].include?(verb) } }
  end

  def stop
    @sockets.each_value(&:close)
    @threads.each(&:kill)
  end

  private

  def serve(site, socket)
    loop do
      client = socket.accept
      @threads << Thread.new { converse(site, client) }
    end
  rescue IOError, Errno::EBADF
    nil
  end

  def converse(site, client)
    while (request = read_request(site, client))
      @mutex.synchronize { @requests << request }
      response = site == :hub ? answer_as_hub(request) : answer_as_store(request)
      break unless send_response(client, request, inject(request, response))
    end
  rescue SystemCallError, IOError
    nil
  ensure
    client.close
  end

  def read_request(site, client)
    line = client.gets or return
    verb, path = line.split
    headers = {}
    while (header = client.gets&.chomp) && !header.empty?
      name, value = header.split(": ", 2)
      headers[name.downcase] = value
    end
    Request.new(site:, verb:, path:, headers:)
  end

  def answer_as_hub(request)
    case request.path
    when %r{\A/api/models/(.+)/revision/([^/]+)\z} then answer_listing(Regexp.last_match(1), Regexp.last_match(2))
    when %r{\A/(.+)/resolve/([^/]+)/(.+)\z}
      id, revision, name = Regexp.last_match.captures
      answer_file(request, id, unescape(revision), unescape(name))
    else refuse(404)
    end
  end

  def answer_listing(id, revision)
    return refuse(404, "RepoNotFound") unless @repositories.key?(id)
    return refuse(404, "RevisionNotFound") unless revision?(id, unescape(revision))

    siblings = @repositories[id].keys.map { |name| { rfilename: name } }
    respond(200, JSON.generate(id:, sha: commit(id), siblings:), "Content-Type" => "application/json")
  end

  def answer_file(request, id, revision, name)
    return refuse(404, "RepoNotFound") unless @repositories.key?(id)
    return refuse(404, "RevisionNotFound") unless revision?(id, revision)

    file = @repositories[id][name]
    from = { "X-Repo-Commit" => commit(id) }
    return refuse(404, "EntryNotFound", from) unless file
    return content(request, file, from.merge("ETag" => %("#{file.etag}"))) unless file.large

    linked = { "X-Linked-Etag" => %("#{file.etag}"), "X-Linked-Size" => file.content.bytesize.to_s }
    respond(302, "Found", from.merge(linked, "Location" => "#{url(:store)}/#{file.etag}?id=#{id}&signature=a~b"))
  end

  def answer_as_store(request)
    files = @repositories.values.flat_map(&:values)
    file = files.find { |candidate| request.path.start_with?("/#{candidate.etag}?") }
    file ? content(request, file, "ETag" => %("another-etag")) : refuse(404)
  end

  def content(request, file, headers)
    size = file.content.bytesize
    start = request.range_start
    return respond(200, file.content, headers) unless start
    return respond(416, "", headers.merge("Content-Range" => "bytes */#{size}")) if start >= size

    respond(206, file.content.byteslice(start..),
            headers.merge("Content-Range" => "bytes #{start}-#{size - 1}/#{size}"))
  end

  def revision?(id, revision)
    ["main", "v1.0", "refs/pr/1", commit(id)].include?(revision)
  end

  def refuse(status, code = nil, headers = {})
    respond(status, "", headers.merge(code ? { "X-Error-Code" => code } : {}))
  end

  def respond(status, body, headers = {})
    headers = { "Content-Length" => body.bytesize.to_s }.merge(headers)
    Response.new(status:, headers:, body:)
  end

  def inject(request, response)
    fault = @mutex.synchronize { @faults.find { |candidate| candidate.meets?(request) }&.tap { |f| f.times -= 1 } }
    fault&.change&.call(response, request)
    response
  end

  # @return [Boolean] whether the connection may serve another request
  def send_response(client, request, response)
    head = response.headers.map { |name, value| "#{name}: #{value}\r\n" }.join
    client.write("HTTP/1.1 #{response.status} Status\r\n#{head}\r\n")
    return true if request.verb == "HEAD"

    body = response.body.byteslice(0, response.cut_at || response.stall_at || response.body.bytesize)
    response.drip ? drip(client, body, response.drip) : client.write(body)
    sleep if response.stall_at
    response.cut_at.nil? && response.headers.key?("Content-Length")
  end

  def drip(client, body, pause)
    (0...body.bytesize).step(1024) do |start|
      client.write(body.byteslice(start, 1024))
      sleep(pause)
    end
  end

  def unescape(text)
    URI.decode_www_form_component(text.gsub("+", "%2B"))
  end
end
