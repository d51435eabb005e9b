# frozen_string_literal: true

require "puma"
require "puma/server"

RSpec.describe "the page of red-candle serve" do
  before { skip("needs Chromium and its driver (Debian: chromium-driver)") unless Browser.there? }

  arrow_right = "\uE014"
  enter = "\uE007"
  sources = ServedModels.sources.map { |name, source| "#{name}=#{source}" }

  it "does all that it offers, by keyboard and on a phone" do
    WebServer.run("serve", *sources) do |server|
      Browser.open(width: 390, height: 800, dark: true) do |browser|
        browser.visit("#{server.base}/")
        browser.wait { browser.script("return document.querySelector('#chat-model').value") == "llm" }
        # Nothing is wider than a phone.
        expect(browser.script("return document.documentElement.scrollWidth <= window.innerWidth")).to be(true)

        browser.script("document.querySelector('#max-tokens').value = 8")
        expect(browser.text(".greeting")).to start_with("Hello!").and include("llm chat", "embedder embeddings",
                                                                              "ner entities")
        browser.click(".example")
        browser.wait { browser.script("return document.querySelectorAll('.facts').length") == 1 }
        expect(browser.text(".turn.user")).to eq("What is Ruby?")
        expect(browser.text(".facts")).to match(%r{8 tokens · [\d.]+ tokens/s · \d+ of \d+ prompt tokens from the})
        browser.click("#menu")
        browser.click("#reset")
        expect(browser.script("return document.querySelectorAll('.example').length")).to be >= 2
        browser.type("#say", "hi#{enter}")
        browser.wait { browser.script("return document.querySelectorAll('.facts').length") == 1 }
        expect(browser.text(".turn.user")).to eq("hi")
        expect(browser.text(".turn.assistant")).not_to be_empty

        browser.type("#tab-chat", arrow_right)
        expect(browser.script("return document.querySelector('#similarity').hidden")).to be(false)
        browser.click("#similarity-form .act")
        browser.wait { browser.script("return document.querySelectorAll('#matrix td').length") == 9 }
        expect(browser.text("#matrix td")).to eq("1.00")

        browser.click("#tab-rerank")
        browser.click("#rerank-form .act")
        browser.wait { browser.script("return document.querySelectorAll('#ranking tr').length") == 2 }

        browser.click("#tab-entities")
        browser.script("document.querySelector('#entities-text').value = 'the dog live in Paris'")
        browser.click("#entities-form .act")
        browser.wait { browser.text("#marked").start_with?("the") }

        browser.click("#tab-live")
        browser.wait { browser.script("return document.querySelectorAll('#plots figure').length") >= 5 }
        expect(browser.text("#plots")).to include("Pages in use")
        expect(browser.script("return document.querySelector('#problem').hidden")).to be(true)
        expect(browser.console.select { |entry| entry["level"] == "SEVERE" }).to be_empty
      end
    end
  end

  it "opens what its models are for" do
    WebServer.run("serve", "r=#{TinyModels.path("bert-reranker")}") do |server|
      Browser.open(width: 1200, height: 800) do |browser|
        browser.visit("#{server.base}/")
        browser.wait { browser.script("return document.querySelector('#rerank').hidden") == false }
        expect(browser.script("return document.querySelector('#query').value")).to include("Berlin")
      end
    end
  end

  it "asks for the token, and says what went wrong" do
    WebServer.run("serve", *sources, "--token", "secret") do |server|
      Browser.open(width: 1200, height: 800) do |browser|
        browser.visit("#{server.base}/")
        browser.wait { browser.text("#problem").include?("token") }
        browser.type("#token", "secret\t")
        browser.wait { browser.script("return document.querySelector('#chat-model').value") == "llm" }
        expect(browser.script("return document.querySelector('#problem').hidden")).to be(true)
        browser.type("#say", "#{"long " * 100}#{enter}")
        browser.wait { browser.text("#problem").include?("context") }
      end
    end
  end

  it "shows the calls of tools as they come" do
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    server, llm = ServedModels.scripted("I look. #{call}", pause: 0.05)
    puma = Puma::Server.new(server)
    port = puma.add_tcp_listener("127.0.0.1", 0).addr[1]
    puma.run
    Browser.open(width: 1200, height: 800) do |browser|
      browser.visit("http://127.0.0.1:#{port}/")
      browser.wait { browser.script("return document.querySelector('#chat-model').value") == "llm" }
      tools = [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }]
      browser.script("document.querySelector('#tools').value = #{JSON.generate(JSON.generate(tools))}")
      browser.type("#say", "How is Rome?#{enter}")
      browser.wait { browser.script("return document.querySelectorAll('.turn.call').length") == 1 }
      browser.wait { browser.script("return document.querySelector('#send-results') != null") }
      expect(browser.text(".turn.call")).to start_with('weather({"city": "Rome"})')
      expect(browser.text(".turn.assistant")).to eq("I look.")
      # What a tool returned is typed in, shown, and told to the model.
      browser.type(".turn.call textarea", "22 degrees")
      browser.click("#send-results")
      browser.wait { browser.script("return document.querySelectorAll('.turn.result').length") == 1 }
      expect(browser.text(".turn.result")).to eq("22 degrees")
      browser.wait { llm.asked.size == 2 }
    end
    expect(llm.asked.first.last[:tools]).to eq(["weather"])
    expect(llm.asked.last.first.map { |message| message[:role] }).to eq(%w[user assistant tool])
  ensure
    puma&.stop(true)
  end

  # Serves an application while the block runs.
  def serving(app)
    puma = Puma::Server.new(app)
    port = puma.add_tcp_listener("127.0.0.1", 0).addr[1]
    puma.run
    yield "http://127.0.0.1:#{port}/"
  ensure
    puma&.stop(true)
  end

  # Says something to the page, and waits for the whole answer.
  def say(browser, text)
    browser.wait { browser.script("return document.querySelector('#chat-model').value") != "" }
    browser.type("#say", "#{text}\uE007")
    browser.wait { browser.script("return document.querySelectorAll('.facts').length") >= 1 }
  end

  # A model that says exactly its text, after what it thinks.
  thinking = Class.new(ServedModels::Scripted) do
    attr_accessor :thought

    def complete(input, config: Candle::GenerationConfig.default, **options, &block)
      @asked << [input, config, options]
      thought&.scan(/.{1,7}/m)&.each { |piece| block&.call(piece, :reasoning) }
      pieces = @text.scan(/.{1,9}/m)
      pieces.each do |piece|
        sleep @pause if @pause.positive?
        block&.call(piece, :text)
      end
      completion(pieces.size)
    ensure
      @finished += 1
    end
  end

  it "renders Markdown and code, folds reasoning, and never runs what a model writes" do
    hostile = <<~TEXT
      # Title <img src=x onerror="document.title='hit'">

      A **bold** and *soft* `code <b>` [link](https://example.org/a) [bad](javascript:alert(1)) ![x](https://e.org/x.png)
      <script>document.title = "hit"</script> <a href="javascript:alert(1)">x</a> &lt;

      ```ruby
      def x = "</code></pre><script>document.title='hit'</script>"
      ```

      1. one
      2. two
         - inner

      | a | b |
      |---|---|
      | 1 | <svg onload="document.title='hit'"> |

      > quoted
      ---
    TEXT
    llm = thinking.new(hostile).tap { |model| model.thought = "I think <b>so</b>." }
    app = Candle::Server.new(models: { "llm" => { source: llm, kind: :llm } })
    serving(app) do |base|
      Browser.open(width: 1200, height: 900) do |browser|
        browser.visit(base)
        say(browser, "<i>hi</i>")
        within = ->(query) { browser.script("return document.querySelectorAll('#talk #{query}').length") }
        expect(%w[script img svg iframe object b i style].map { |tag| within.call(tag) }).to all(eq(0))
        expect(%w[h2 strong em pre ol ul table blockquote hr].map { |tag| within.call(tag) }).to all(eq(1))
        expect(within.call("a")).to eq(2)
        expect(browser.script("return document.querySelector('#talk a').href")).to eq("https://example.org/a")
        expect(browser.text("#talk pre code")).to include("</code></pre><script>")
        expect(browser.text("#talk h2")).to eq(%(Title <img src=x onerror="document.title='hit'">))
        expect(browser.text(".turn.user")).to eq("<i>hi</i>")
        expect(browser.script("return document.title")).to eq("red-candle")
        expect(browser.script("return document.querySelector('.reasoning').open")).to be(false)
        expect(browser.text(".reasoning div")).to eq("I think <b>so</b>.")
        browser.click(".reasoning summary")
        expect(browser.script("return document.querySelector('.reasoning').open")).to be(true)
        # The same after a reload, from the browser's own storage, which strangers may have written.
        browser.reload
        browser.wait { browser.script("return document.querySelectorAll('#conversations li').length") == 1 }
        browser.click("#conversations .open")
        expect(%w[script img svg].map { |tag| within.call(tag) }).to all(eq(0))
        expect(within.call("strong")).to eq(1)
        expect(browser.text(".facts")).to include("tokens")
      end
    end
  end

  it "draws long and odd texts in time" do
    odd = ["*" * 20_000, "[" * 20_000, "`" * 5000, "[a](" * 5000, "**a " * 5000, "> " * 3000, "#{"#" * 9000} x",
           "- " * 5000, "|" * 5000, "_a" * 9000, "\\" * 9000, "h" * 9000, "x " * 30_000, "~~~\n#{"'" * 20_000}"]
    app, = ServedModels.scripted("x")
    serving(app) do |base|
      Browser.open(width: 1200, height: 900) do |browser|
        browser.visit(base)
        times = odd.map do |text|
          browser.script("const began = performance.now(); document.createElement('div').append(...markdown(" \
                         "#{JSON.generate("#{text}\n#{text}")})); return performance.now() - began")
        end
        expect(times.zip(odd.map { |text| text[0, 12] })).to all(satisfy { |time, _| time < 1000 })
      end
    end
  end

  it "keeps conversations in the browser, goes on with them, and forgets them" do
    app, llm = ServedModels.scripted("Fine.")
    serving(app) do |base|
      Browser.open(width: 390, height: 800) do |browser|
        browser.visit(base)
        say(browser, "one")
        browser.reload
        browser.wait { browser.script("return document.querySelectorAll('.greeting').length") == 1 }
        browser.click("#menu")
        expect(browser.text("#conversations .open")).to eq("one")
        browser.click("#conversations .open")
        say(browser, "two")
        browser.wait { browser.script("return document.querySelectorAll('.facts').length") == 2 }
        expect(llm.asked.last.first.map { |message| message[:content] }).to eq(%w[one Fine. two])
        browser.click("#menu")
        browser.click("#conversations .remove")
        expect(browser.script("return localStorage.length")).to eq(0)
        expect(browser.script("return document.querySelectorAll('.greeting').length")).to eq(1)
      end
    end
  end

  it "stops an answer by a key, and keeps what was said" do
    app, llm = ServedModels.scripted("word " * 400, pause: 0.02)
    serving(app) do |base|
      Browser.open(width: 1200, height: 800) do |browser|
        browser.visit(base)
        browser.wait { browser.script("return document.querySelector('#chat-model').value") == "llm" }
        browser.type("#say", "go#{enter}")
        browser.wait { browser.text(".turn.assistant").include?("word word") }
        browser.type("#say", "\uE00C")
        browser.wait { browser.script("return document.querySelector('#stop').disabled") }
        browser.wait { llm.finished == 1 }
        expect(browser.text(".turn.assistant").split.size).to be < 400
        expect(browser.script("return document.activeElement.id")).to eq("say")
      end
    end
  end

  it "takes images for models that see" do
    WebServer.run("serve", "eyes=#{TinyModels.path("llava")}") do |server|
      Browser.open(width: 390, height: 800) do |browser|
        browser.visit("#{server.base}/")
        browser.wait { browser.script("return document.querySelector('#add-picture').hidden") == false }
        browser.script("document.querySelector('#max-tokens').value = 4")
        browser.type("#picture-file", File.expand_path("../fixtures/images/photo.png", __dir__))
        browser.wait { browser.script("return document.querySelectorAll('#pictures img').length") == 1 }
        say(browser, "what is it?")
        expect(browser.script("return document.querySelectorAll('.turn.user img').length")).to eq(1)
        expect(browser.text(".facts")).to match(/of (1[7-9]|[2-9]\d|\d{3}) prompt tokens/)
        expect(browser.script("return document.querySelector('#problem').hidden")).to be(true)
      end
    end
  end

  it "takes a recording where a model of speech is served" do
    inner, = ServedModels.scripted("Fine.")
    heard = nil
    app = lambda do |env|
      case env["PATH_INFO"]
      when "/v1/models"
        models = [{ id: "llm", kind: "llm" }, { id: "ears", kind: "transcriber" }]
        [200, { "content-type" => "application/json" }, [JSON.generate(data: models)]]
      when "/v1/audio/transcriptions"
        Candle::Server::Multipart.read(env, limit: 10_000_000) { |form| heard = [form["model"], form["file"].bytes] }
        [200, { "content-type" => "application/json" }, ['{"text": " hello there"}']]
      else inner.call(env)
      end
    end
    serving(app) do |base|
      Browser.open(width: 1200, height: 800, more: %w[--use-fake-device-for-media-stream
                                                      --use-fake-ui-for-media-stream]) do |browser|
        browser.visit(base)
        browser.wait { browser.script("return document.querySelector('#record').hidden") == false }
        browser.click("#record")
        browser.wait { browser.script("return recording !== null && recording.chunks.length > 3") }
        browser.click("#record")
        browser.wait { browser.script("return document.querySelector('#say').value") == "hello there" }
        expect(browser.script("return document.querySelector('#record').getAttribute('aria-pressed')")).to eq("false")
      end
    end
    model, bytes = heard
    expect(model).to eq("ears")
    expect(bytes[0, 4] + bytes[8, 8]).to eq("RIFFWAVEfmt ")
    expect(bytes[24, 4].unpack1("V")).to eq(16_000)
    expect(bytes.bytesize).to be > 16_000
  end

  it "asks nobody else for anything" do
    page = File.read(File.expand_path("../../lib/candle/server/page.html", __dir__))
    expect(page.scan(/(?:src|href)=["'](?!data:)[^"']+|url\(|@import|innerHTML|eval\(/)).to eq([])
  end
end
