# frozen_string_literal: true

require "tmpdir"

RSpec.describe Candle::Server::OpenAIBatches do
  # What is computed in the background ends before its folder does.
  around do |example|
    Dir.mktmpdir do |folder|
      @folder = folder
      example.run
      Thread.list.select { |thread| thread.name == "candle batches" }.each { |thread| thread.join(20) }
    end
  end

  def serve(**options)
    Candle::Server.new(models: ServedModels.models, storage: @folder, max_tokens: 64, **options)
  end

  def form(parts)
    boundary = "xYz"
    body = parts.map do |name, value|
      head = "--#{boundary}\r\ncontent-disposition: form-data; name=\"#{name}\""
      head += "; filename=\"#{value.first}\"\r\ncontent-type: application/jsonl" if value.is_a?(Array)
      "#{head}\r\n\r\n#{Array(value).last}\r\n"
    end
    ["#{body.join}--#{boundary}--\r\n", { "CONTENT_TYPE" => "multipart/form-data; boundary=#{boundary}" }]
  end

  def upload(server, lines, purpose: "batch", **more)
    text = lines.is_a?(String) ? lines : lines.map { |line| "#{JSON.generate(line)}\n" }.join
    body, headers = form({ "purpose" => purpose, **more.transform_keys(&:to_s), "file" => ["requests.jsonl", text] })
    post(server, "/v1/files", body, headers)
  end

  def line(name, url: "/v1/chat/completions", **body)
    body = { model: "llm", messages: [{ role: "user", content: "hi" }], max_tokens: 4, temperature: 0 }.merge(body)
    { custom_id: name, method: "POST", url: url, body: body }
  end

  def batch(server, file_id, endpoint: "/v1/chat/completions", **more)
    post(server, "/v1/batches", { input_file_id: file_id, endpoint: endpoint, completion_window: "24h", **more })
  end

  def over(server, id, seconds = 30)
    stop = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
    loop do
      found = get(server, "/v1/batches/#{id}").json
      return found unless %w[validating in_progress finalizing cancelling].include?(found["status"])
      raise "still #{found["status"]}" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > stop

      sleep 0.02
    end
  end

  def lines_of(server, file_id)
    get(server, "/v1/files/#{file_id}/content").lines
  end

  def run(server, lines, **options)
    over(server, batch(server, upload(server, lines).json["id"], **options).json["id"])
  end

  it "computes every line as the route itself does, and errors of single lines stay theirs" do
    server = serve
    made = run(server, [line("a"), line("b", model: "none"), line("c", temperature: "hot"), line("d", stream: true),
                        line("e", max_tokens: 6)], metadata: { for: "me" })
    expect(made).to include("object" => "batch", "status" => "completed", "errors" => nil,
                            "metadata" => { "for" => "me" },
                            "request_counts" => { "total" => 5, "completed" => 2, "failed" => 3 })
    expect(made["in_progress_at"]).to be_between(made["created_at"], made["completed_at"])
    answers = lines_of(server, made["output_file_id"]).to_h { |found| [found["custom_id"], found["response"]] }
    direct = post(server, "/v1/chat/completions", line("a")[:body]).json
    expect(answers.keys).to match_array(%w[a e])
    expect(answers["a"]).to include("status_code" => 200, "body" => hash_including("choices" => direct["choices"]))
    errors = lines_of(server, made["error_file_id"]).to_h { |found| [found["custom_id"], found["response"]] }
    expect(errors.transform_values { |found| found["status_code"] }).to eq("b" => 404, "c" => 400, "d" => 400)
    expect(errors["c"]["body"]["error"]).to include("param" => "temperature")
    expect(get(server, "/metrics").text).to include('candle_batch_lines_total{status="completed"} 2')
  end

  it "takes the other endpoints too" do
    server = serve
    made = run(server, [line("v", url: "/v1/embeddings", model: "embedder", input: "a dog")],
               endpoint: "/v1/embeddings")
    expect(lines_of(server, made["output_file_id"]).first["response"]["body"]["data"].first["embedding"].size).to eq(32)
    made = run(server, [line("r", url: "/v1/responses", input: "hi", max_output_tokens: 3)], endpoint: "/v1/responses")
    expect(lines_of(server, made["output_file_id"]).first["response"]["body"]["object"]).to eq("response")
    made = run(server, [line("p", url: "/v1/completions", prompt: "the")], endpoint: "/v1/completions")
    expect(made["request_counts"]).to eq("total" => 1, "completed" => 1, "failed" => 0)
    expect(made["error_file_id"]).to be_nil
  end

  it "fails as a whole for a malformed file, and names the lines" do
    server = serve(batch_lines: 6)
    bad = ["{", '{"custom_id": "a"}', JSON.generate(line("x")), JSON.generate(line("x")),
           JSON.generate(line("y", url: "/v1/embeddings")), "", JSON.generate(line("z").merge(body: 1))].join("\n")
    made = over(server, batch(server, upload(server, bad).json["id"]).json["id"])
    expect(made).to include("status" => "failed", "output_file_id" => nil)
    expect(made["errors"]["data"].map { |error| error.values_at("line", "code") })
      .to eq([[1, "invalid_json_line"], [2, "invalid_method"], [4, "duplicate_custom_id"], [5, "mismatched_endpoint"],
              [7, "missing_body"]])
    many = run(server, Array.new(7) { |index| line("n#{index}") })
    expect(many["errors"]["data"].first["code"]).to eq("too_many_requests")
    expect(over(server, batch(server, upload(server, "\n\n").json["id"]).json["id"])["errors"]["data"].first["code"])
      .to eq("empty_file")
  end

  it "is cancelled, also in the middle of a line, and keeps what was done" do
    server, llm = ServedModels.scripted("one two three four five six", pause: 0.2, storage: @folder, running: 2)
    id = batch(server, upload(server, Array.new(50) { |index| line("n#{index}", max_tokens: 6) }).json["id"]).json["id"]
    sleep 0.05 until get(server, "/v1/batches/#{id}").json["request_counts"]["completed"] >= 1
    told = post(server, "/v1/batches/#{id}/cancel", {}).json
    expect(told["status"]).to eq("cancelling").or eq("cancelled")
    made = over(server, id, 5)
    expect(made).to include("status" => "cancelled")
    expect(made["cancelled_at"]).to be_an(Integer)
    expect(lines_of(server, made["output_file_id"]).size).to eq(made["request_counts"]["completed"])
    expect(llm.asked.size).to be < 50
    expect(post(server, "/v1/batches/#{id}/cancel", {}).status).to eq(409)
  end

  it "goes on in the next server, without computing a line twice" do
    server, = ServedModels.scripted("one two three", pause: 0.05, storage: @folder, running: 2)
    id = batch(server, upload(server, Array.new(12) { |index| line("n#{index}") }).json["id"]).json["id"]
    sleep 0.02 until get(server, "/v1/batches/#{id}").json["request_counts"]["completed"] >= 2
    server.close
    left = get(server, "/v1/batches/#{id}").json
    expect(left["status"]).to eq("in_progress")
    done = left["request_counts"]["completed"]
    # A crash in the middle of a line.
    File.open(Dir.glob("#{@folder}/files/*0a.data").first, "a") { |file| file.write('{"custom_id": "n1') }
    other, llm = ServedModels.scripted("one two three", storage: @folder)
    get(other, "/health")
    made = over(other, id)
    expect(made).to include("status" => "completed",
                            "request_counts" => { "total" => 12, "completed" => 12, "failed" => 0 })
    expect(llm.asked.size).to eq(12 - done)
    expect(lines_of(other, made["output_file_id"]).map { |found| found["custom_id"] }.uniq.size).to eq(12)
  end

  it "expires: lines that were not computed in time are errors" do
    server = serve
    id = batch(server, upload(server, [line("a")]).json["id"]).json["id"]
    over(server, id)
    path = "#{@folder}/batches/#{id}.json"
    record = JSON.parse(File.read(path)).merge("status" => "validating", "expires_at" => Time.now.to_i - 1)
    FileUtils.rm_f(Dir.glob("#{@folder}/files/*0a.data"))
    File.write(path, JSON.generate(record))
    made = over(serve.tap { |next_one| get(next_one, "/health") }, id)
    expect(made).to include("status" => "expired",
                            "request_counts" => { "total" => 1, "completed" => 0, "failed" => 1 })
    expect(lines_of(server, made["error_file_id"]).first["error"]["code"]).to eq("batch_expired")
  end

  it "keeps its disk use below the limits" do
    server = serve(file_bytes: 2000, storage_bytes: 3000, files: 2, batches: 1)
    expect(upload(server, "x" * 2001).status).to eq(413)
    expect(upload(server, "x" * 60_000).json["error"]["code"]).to eq("file_too_large")
    expect(upload(server, "x" * 200_000).json["error"]["code"]).to eq("body_too_large")
    first = upload(server, "x" * 1900).json
    expect(upload(server, "x" * 1900).json["error"]["code"]).to eq("storage_full")
    expect(upload(server, "x", purpose: "batch").status).to eq(200)
    expect(upload(server, "x").json["error"]["code"]).to eq("too_many_files")
    expect(ask(server, "DELETE", "/v1/files/#{first["id"]}").json).to include("deleted" => true)
    file = upload(server, Array.new(12) { |index| line("n#{index}") }).json
    # What a batch writes counts too.
    made = over(server, batch(server, file["id"]).json["id"])
    expect(made).to include("status" => "failed")
    expect(made["errors"]["data"].first["code"]).to eq("storage_full")
    expect(Dir.glob("#{@folder}/files/*.data").sum { |path| File.size(path) }).to be <= 3000
  end

  it "takes so many batches at a time" do
    server, = ServedModels.scripted("one two", pause: 0.2, storage: @folder, batches: 1)
    file = upload(server, [line("a")]).json["id"]
    id = batch(server, file).json["id"]
    expect(batch(server, file)).to have_attributes(status: 429, headers: hash_including("retry-after" => "60"))
    expect(ask(server, "DELETE", "/v1/files/#{file}").status).to eq(409)
    over(server, id)
    again = batch(server, file)
    expect(again.status).to eq(200)
    over(server, again.json["id"])
  end

  it "begins batches that come as the one before ends" do
    server, = ServedModels.scripted("one", storage: @folder)
    file = upload(server, [line("a")]).json["id"]
    ends = Array.new(40) { over(server, batch(server, file).json["id"], 5)["status"] }
    expect(ends).to all(eq("completed"))
  end

  it "refuses what is malformed, and names that were made up" do
    server = serve
    file = upload(server, [line("a")]).json["id"]
    expect(batch(server, file, endpoint: "/v1/rerank").json["error"]["param"]).to eq("endpoint")
    expect(batch(server, file, completion_window: "1h").json["error"]["param"]).to eq("completion_window")
    expect(batch(server, "file-0").json["error"]["param"]).to eq("input_file_id")
    expect(batch(server, "../files/x").status).to eq(400)
    expect(batch(server, file, metadata: { a: 1 }).json["error"]["param"]).to eq("metadata")
    other = upload(server, "x", purpose: "user_data").json["id"]
    expect(batch(server, other).json["error"]["message"]).to include("user_data")
    expect(upload(server, "x", purpose: "fine-tune").json["error"]["param"]).to eq("purpose")
    expect(upload(server, "x", "expires_after[seconds]" => "5").json["error"]["param"]).to eq("expires_after")
    ["/v1/files/..%2f..%2fetc", "/v1/batches/batch_../x", "/v1/files/file-#{"0" * 24}/content"].each do |path|
      expect(get(server, path).status).to eq(404)
    end
    expect(post(server, "/v1/files", "{}", { "CONTENT_TYPE" => "application/json" }).status).to eq(400)
  end

  it "lists pages, removes what has expired, and needs the token" do
    server = serve(token: "secret")
    key = { "HTTP_AUTHORIZATION" => "Bearer secret" }
    body, headers = form({ "purpose" => "batch", "file" => ["../a.jsonl", "{}"] })
    expect(post(server, "/v1/files", body, headers).status).to eq(401)
    ids = Array.new(3) { post(server, "/v1/files", body, headers.merge(key)).json["id"] }
    expect(get(server, "/v1/files/#{ids.first}", key).json).to include("filename" => "a.jsonl", "bytes" => 2)
    page = get(server, "/v1/files", key.merge("QUERY_STRING" => "limit=2&order=asc")).json
    expect(page).to include("has_more" => true)
    rest = get(server, "/v1/files", key.merge("QUERY_STRING" => "after=#{page["last_id"]}&order=asc")).json
    expect((page["data"] + rest["data"]).map { |file| file["id"] }).to match_array(ids)
    path = "#{@folder}/files/#{ids.last}.json"
    File.write(path, JSON.generate(JSON.parse(File.read(path)).merge("expires_at" => 1)))
    expect(get(server, "/v1/files/#{ids.last}", key).status).to eq(404)
    expect(File.exist?(path.sub("json", "data"))).to be(false)
    expect(get(server, "/v1/batches").status).to eq(401)
    expect(get(server, "/v1/batches", key).json["data"]).to eq([])
  end

  it "keeps files in a temporary folder without a storage, in one process" do
    server = Candle::Server.new(models: ServedModels.models)
    expect(get(server, "/v1/files").json["data"]).to eq([])
    expect(run(server, [line("a")])["status"]).to eq("completed")
    reader, writer = IO.pipe
    pid = fork do
      writer.write(upload(server, [line("a")]).json["error"]["code"])
      exit!(0)
    end
    Process.wait(pid)
    writer.close
    expect(reader.read).to eq("no_storage")
  end
end
