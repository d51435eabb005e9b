# frozen_string_literal: true

# A Rails application in one file: articles that are searched by meaning.
#
#   DATABASE_URL=postgresql:///articles ruby examples/rails_search.rb   # then open http://localhost:3000
#
# It takes the pg gem, and PostgreSQL with the pgvector extension.
#
# needs Rails, Puma
require "action_controller/railtie"
require "active_job/railtie"
require "active_record/railtie"
require "candle/active_record"
require "candle/jobs"

class Application < Rails::Application
  config.root = __dir__
  config.eager_load = false
  config.secret_key_base = "only for this example"
  config.logger = Logger.new($stderr)
  config.log_level = :warn
  config.candle.preload = ["sentence-transformers/all-MiniLM-L6-v2"]
  config.active_job.queue_adapter = :async
  config.hosts.clear
  routes.append do
    root to: "articles#index"
    resources :articles, only: :create
  end
end

class Article < ActiveRecord::Base
  has_embedding :content, model: "sentence-transformers/all-MiniLM-L6-v2", dimensions: 384, update: :later
end

class CreateArticles < ActiveRecord::Migration[6.1]
  def change
    enable_extension "vector"
    create_table(:articles) { |table| table.text :content, null: false }
    add_embedding :articles, dimensions: 384
    add_embedding_index :articles, using: :hnsw
    create_candle_jobs_tables
  end
end

class ArticlesController < ActionController::Base
  PAGE = <<~HTML
    <form><input name="q" value="<%= params[:q] %>" autofocus> <button>Search</button></form>
    <ol><% @articles.each do |article| %><li><%= article.content %></li><% end %></ol>
    <form action="/articles" method="post">
      <%= hidden_field_tag :authenticity_token, form_authenticity_token %>
      <input name="content"> <button>Add</button>
    </form>
  HTML

  def index
    @articles = params[:q].present? ? Article.nearest(params[:q], limit: 3) : Article.order(:id)
    render inline: PAGE
  end

  # The job that embeds it runs after the record is saved.
  def create
    Article.create!(content: params.require(:content))
    redirect_to "/"
  end
end

ENV["DATABASE_URL"] ||= "postgresql:///articles"
Application.initialize!
unless Article.table_exists?
  ActiveRecord::Migration.suppress_messages { CreateArticles.migrate(:up) }
  Article.insert_all(["Berlin has about 3.7 million inhabitants.",
                      "Bread rises because yeast turns sugar into carbon dioxide.",
                      "Ruby was created by Yukihiro Matsumoto in the nineties.",
                      "The Great Barrier Reef lies off the coast of Australia."].map { |text| { content: text } })
end

# What has no vector yet, or an old one, is brought up to date in the background.
Candle::Jobs.embed(Article)

require "rack/handler/puma"
Rack::Handler::Puma.run(Application, Port: Integer(ENV.fetch("PORT", "3000")), Silent: true)
