# frozen_string_literal: true

require "cgi"
require "net/http"
require "open3"
require "tempfile"
require_relative "../../rakelib/support/doc_examples"

RSpec.describe "documentation of Rails" do
  let(:url) { "postgresql:///documentation" }
  let(:environment) do
    { **Tasks::Models.environment, "DATABASE_URL" => url,
                                   "PGHOST" => ENV.fetch("CANDLE_POSTGRES"), "PGUSER" => "candle" }
  end

  before do
    connect(:postgresql)
    ActiveRecord::Base.connection.execute("DROP DATABASE IF EXISTS documentation")
    ActiveRecord::Base.connection.execute("CREATE DATABASE documentation")
  end

  # What the blocks of a page have before them: a connection, tables, and the blocks above.
  def prelude
    <<~RUBY
      require "active_record"
      require "active_job"
      require "candle/active_record"
      require "candle/jobs"
      ActiveRecord::Base.establish_connection(#{url.dump})
      ActiveJob::Base.queue_adapter = :async
      ActiveJob::Base.logger = nil
      ActiveRecord::Migration.verbose = false
      ActiveRecord::Base.connection.enable_extension("vector")
      ActiveRecord::Base.connection.create_table(:articles) { |t| t.text(:content) && t.string(:language, default: "en") }
      ActiveRecord::Base.connection.create_table(:pages)
      Class.new(ActiveRecord::Migration[6.1]) { def change = add_embedding(:articles, dimensions: 384) }.migrate(:up)
    RUBY
  end

  it "runs, block after block" do
    page = File.read(File.join(Tasks::Build::ROOT, "docs/guides/rails.md"))
    blocks = page.scan(/^```ruby\n(# needs Rails\n.*?)^```/m).flatten
    expect(blocks.size).to be >= 4
    Tasks::Models.fetch_mentioned(page)
    code = prelude + blocks.map { |block| Tasks::DocExamples.instrument(block) }.join
    code += "AddEmbeddingToPages.migrate(:up)\nAddEmbeddingToPages.migrate(:down)\n"
    checks = File.join(Tasks::Build::ROOT, "rakelib/support/doc_prelude.rb")
    output, status = Open3.capture2e(environment, RbConfig.ruby, "-r", checks, "-e", code)
    expect(status).to be_success, output
  end

  it "has an example that is an application" do
    Tasks::Models.path("sentence-transformers/all-MiniLM-L6-v2")
    port = Addrinfo.tcp("127.0.0.1", 0).bind { |socket| socket.local_address.ip_port }
    script = File.join(Tasks::Build::ROOT, "examples/rails_search.rb")
    log = Tempfile.new("rails_search")
    server = Process.spawn(environment.merge("PORT" => port.to_s), RbConfig.ruby, script, out: log.path, err: log.path)
    page = ->(query) { Net::HTTP.get(URI("http://127.0.0.1:#{port}/?q=#{query}")) }
    first = ->(query) { page.call(query)[%r{<li>(.*?)</li>}, 1].to_s }
    found = nil
    deadline = Time.now + 60
    until found&.include?("<li>Bread") || Time.now > deadline
      found = begin
        page.call("baking+a+loaf")
      rescue Errno::ECONNREFUSED
        sleep 0.3
        nil
      end
    end
    expect(found.to_s[%r{<li>(.*?)</li>}, 1]).to start_with("Bread rises"), File.read(log.path)
    expect(page.call("")).to include("Great Barrier Reef")
    add_article(port, "Sourdough needs flour, water and a week of patience.")
    sleep 0.2 until first.call("a+starter+for+sourdough").start_with?("Sourdough") || Time.now > deadline
    expect(first.call("a+starter+for+sourdough")).to start_with("Sourdough")
  ensure
    Process.kill("TERM", server) && Process.wait(server) if server
  end

  # As the form does it, with its cookie and token.
  def add_article(port, text)
    Net::HTTP.start("127.0.0.1", port) do |http|
      form = http.get("/")
      token = form.body[/name="authenticity_token"[^>]*value="([^"]+)"/, 1]
      body = URI.encode_www_form(content: text, authenticity_token: CGI.unescapeHTML(token))
      headers = { "Cookie" => form["set-cookie"].split(";").first,
                  "Content-Type" => "application/x-www-form-urlencoded" }
      answer = http.post("/articles", body, headers)
      expect(answer.code).to eq("302"), answer.body[0, 4000]
    end
  end
end
